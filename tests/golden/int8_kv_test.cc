// What `--kv-type q8_0` costs, and that it is exact.
//
// The yardstick is what llama.cpp loses when it rounds activations to int8 in blocks of 32 (the
// quantised golden fixtures): q8_0 keys and values are rounded in the same way, but only where
// attention reads them, so the model may be no further from the exact logits than that.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>

#include "model/gguf.h"
#include "model/load.h"
#include "support/golden.h"
#include "support/model_runner.h"

namespace cairn {
namespace {

using testing::GoldenCase;
using testing::GoldenLoss;
using testing::GoldenSet;
using testing::LogitsError;
using testing::ModelRunner;
using testing::TestSequence;

struct Fixture {
  const char* name;
  const char* yardstick;  // a fixture of the same architecture with quantised variants
};
constexpr Fixture kFixtures[] = {{"qwen35-a", "quant/qwen35-a"},
                                 {"qwen35-b", "quant/qwen35-a"},
                                 {"llama-a", "quant/llama-a"},
                                 {"llama-b", "quant/llama-a"}};
constexpr int kRowsMax = 128;
// Maxima of the same kernels over other sequences differ by this factor (measured over eight sets).
constexpr double kMaxSpread = 4;

std::unique_ptr<Model> Load(const std::string& name) {
  auto file = GgufFile::Open(testing::kGoldenData + name + "/model.gguf");
  EXPECT_TRUE(file.ok()) << file.status().ToString();
  LoadOptions options;
  options.kv_type = KvType::kQ8_0;
  auto model = LoadModel(*file, options);
  EXPECT_TRUE(model.ok()) << model.status().ToString();
  return std::move(*model);
}

std::string CaseName(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

class Int8Kv : public ::testing::TestWithParam<Fixture> {};

TEST_P(Int8Kv, LosesNoMoreThanInt8Activations) {
  const GoldenSet set = testing::LoadGoldenSet(GetParam().name);
  const GoldenLoss yardstick = testing::LoadGoldenLoss(GetParam().yardstick, "Q8_0", "yardstick");
  const auto model = Load(GetParam().name);
  const int64_t vocab = model->info().vocab_size;
  ModelRunner runner(*model, SupportedCpuLevels().back(), 2, kRowsMax);
  LogitsError error(vocab);
  const int chunks[] = {kRowsMax};
  for (const GoldenCase& c : set.cases) {
    TestSequence sequence(*model);
    const std::vector<float> logits = runner.Feed(sequence, c.tokens, chunks);
    for (size_t i = 0; i < c.positions.size(); ++i)
      error.Add(set.Row(c, i), &logits[c.positions[i] * vocab]);
  }
  std::printf("%s q8_0: %s; int8 activations: median %.2e mean %.2e max %.2e\n", GetParam().name,
              error.ToString().c_str(), yardstick.kl_median, yardstick.kl_mean, yardstick.kl_max);
  EXPECT_LE(error.kl_median(), yardstick.kl_median);
  EXPECT_LE(error.kl_mean(), yardstick.kl_mean);
  EXPECT_LE(error.kl_max(), kMaxSpread * yardstick.kl_max);
}

TEST_P(Int8Kv, EveryChunkingThreadCountAndLevelGivesTheSameBits) {
  const GoldenSet set = testing::LoadGoldenSet(GetParam().name);
  const auto model = Load(GetParam().name);
  const GoldenCase& c = set.Case("len300");
  std::vector<float> whole;
  std::mt19937 random(1);
  for (const CpuLevel level : SupportedCpuLevels()) {
    for (const int threads : {1, 3}) {
      const bool by_token = threads == 3;
      if (by_token && level == CpuLevel::kScalar) continue;  // slow, and covered by the other two
      ModelRunner runner(*model, level, threads, kRowsMax);
      std::vector<int> chunks = {1};
      for (int i = 0; i < 40 && !by_token; ++i)
        chunks.push_back(1 + static_cast<int>(random() % kRowsMax));
      TestSequence sequence(*model);
      const std::vector<float> logits = runner.Feed(sequence, c.tokens, chunks);
      if (whole.empty()) whole = logits;
      ASSERT_EQ(logits.size(), whole.size());
      EXPECT_EQ(std::memcmp(logits.data(), whole.data(), whole.size() * sizeof(float)), 0)
          << CpuLevelName(level) << " " << threads;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, Int8Kv, ::testing::ValuesIn(kFixtures),
                         [](const auto& info) { return CaseName(info.param.name); });

}  // namespace
}  // namespace cairn
