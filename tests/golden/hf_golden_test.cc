// Hugging Face and MLX directories against the golden fixtures, on every CPU level of this machine.
// The limits and where they come from: README.md.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "kernels/quant.h"
#include "model/decoder_model.h"
#include "model/inspect.h"
#include "model/load.h"
#include "model/open_model.h"
#include "model/weights.h"
#include "support/golden.h"
#include "support/golden_run.h"
#include "support/model_runner.h"

namespace cairn {
namespace {

using testing::GoldenCase;
using testing::GoldenLoss;
using testing::GoldenRun;
using testing::GoldenSet;
using testing::LogitsError;
using testing::ModelRunner;
using testing::TestSequence;

constexpr double kLogitsMax = 1e-3;
constexpr double kLogitsRmsPerStd = 2e-5;
constexpr double kStatesMax = 1e-4;
constexpr double kQuantMedian = 1.4, kQuantMean = 1.6, kQuantMax = 4;
constexpr int kRowsMax = 128;
constexpr int kThreads = 2;

std::unique_ptr<Model> Load(const std::string& path) {
  auto model = testing::LoadWithFloatKv(path);
  EXPECT_TRUE(model.ok()) << model.status().ToString();
  return std::move(*model);
}

// Logits of all tokens of a case.
std::vector<float> FeedCase(const Model& model, CpuLevel level, const GoldenCase& c,
                            TestSequence& sequence) {
  ModelRunner runner(model, level, kThreads, kRowsMax);
  const int chunks[] = {kRowsMax};
  return runner.Feed(sequence, c.tokens, chunks);
}

std::string CaseName(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

class HfFloat : public ::testing::TestWithParam<std::tuple<const char*, CpuLevel>> {};

TEST_P(HfFloat, LogitsAndStates) {
  const auto [name, level] = GetParam();
  const GoldenSet set = testing::LoadGoldenSet(name);
  const auto model = Load(set.directory + "hf");
  const GoldenRun run = testing::RunGolden(*model, level, set, /*with_states=*/true);
  const LogitsError& error = run.logits;
  std::printf("%s hf %s: %s states %.2e\n", name, CpuLevelName(level), error.ToString().c_str(),
              run.states);
  EXPECT_LE(error.max_abs(), kLogitsMax);
  EXPECT_LE(error.rms(), kLogitsRmsPerStd * set.LogitsStd());
  EXPECT_EQ(error.argmax_errors(), 0);
  EXPECT_EQ(run.misshapen, "");
  EXPECT_GT(run.states_seen, 0);
  EXPECT_EQ(run.states_unknown, 0);
  EXPECT_LE(run.states, kStatesMax);
}

INSTANTIATE_TEST_SUITE_P(
    Fixtures, HfFloat,
    ::testing::Combine(::testing::Values("qwen35-a", "qwen35-b", "llama-a", "llama-b", "qwen3",
                                         "lfm2", "gemma3", "granite-h", "falcon-h1", "mamba2",
                                         "nemotron-h", "qwen3-next", "kimi-linear"),
                       ::testing::ValuesIn(SupportedCpuLevels())),
    [](const auto& info) {
      return CaseName(std::string(std::get<0>(info.param)) + "_" +
                      CpuLevelName(std::get<1>(info.param)));
    });

// Where a directory and a GGUF file hold the same numbers in the same order, the format is no more
// than a file format. Not so for qwen35 (order of value heads), falcon-h1 (where the multipliers
// stand) and all that have an A_log: GGUF holds -exp(A_log) as NumPy rounds it, which is off by an
// ulp now and then.
class HfSameBits : public ::testing::TestWithParam<const char*> {};

TEST_P(HfSameBits, LogitsEqualThoseOfGguf) {
  const GoldenSet set = testing::LoadGoldenSet(GetParam());
  const auto hf = Load(set.directory + "hf");
  const auto gguf = Load(set.directory + "model.gguf");
  const GoldenCase& c = set.Case("len300");
  const CpuLevel level = SupportedCpuLevels().back();
  TestSequence a(*hf), b(*gguf);
  const std::vector<float> from_hf = FeedCase(*hf, level, c, a),
                           from_gguf = FeedCase(*gguf, level, c, b);
  ASSERT_EQ(from_hf.size(), from_gguf.size());
  EXPECT_EQ(std::memcmp(from_hf.data(), from_gguf.data(), from_hf.size() * sizeof(float)), 0);
  EXPECT_EQ(hf->info().parameter_count, gguf->info().parameter_count);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, HfSameBits,
                         ::testing::Values("llama-a", "llama-b", "qwen3", "lfm2", "gemma3"),
                         [](const auto& info) { return CaseName(info.param); });

struct Variant {
  const char* name;
  const char* type;
};
class MlxGolden : public ::testing::TestWithParam<std::tuple<Variant, CpuLevel>> {};

TEST_P(MlxGolden, LogitsWithinTheYardstick) {
  const auto [variant, level] = GetParam();
  const std::string directory = std::string("quant/") + variant.name;
  const GoldenSet set = testing::LoadGoldenSet(directory, variant.type);
  const GoldenLoss yardstick = testing::LoadGoldenLoss(directory, variant.type, "yardstick");
  const auto model = Load(set.directory + variant.type);
  const LogitsError error = testing::RunGolden(*model, level, set, false).logits;
  std::printf("%s %s %s: %s; of the yardstick: median %.2f mean %.2f max %.2f\n", variant.name,
              variant.type, CpuLevelName(level), error.ToString().c_str(),
              error.kl_median() / yardstick.kl_median, error.kl_mean() / yardstick.kl_mean,
              error.kl_max() / yardstick.kl_max);
  EXPECT_LE(error.kl_median(), kQuantMedian * yardstick.kl_median);
  EXPECT_LE(error.kl_mean(), kQuantMean * yardstick.kl_mean);
  EXPECT_LE(error.kl_max(), kQuantMax * yardstick.kl_max);
}

constexpr Variant kVariants[] = {
    {"qwen35-a", "mlx4"}, {"qwen35-a", "mlx8"}, {"llama-a", "mlx4"}, {"llama-a", "mlx8"}};

INSTANTIATE_TEST_SUITE_P(Variants, MlxGolden,
                         ::testing::Combine(::testing::ValuesIn(kVariants),
                                            ::testing::ValuesIn(SupportedCpuLevels())),
                         [](const auto& info) {
                           const Variant& variant = std::get<0>(info.param);
                           return CaseName(std::string(variant.name) + "_" + variant.type + "_" +
                                           CpuLevelName(std::get<1>(info.param)));
                         });

// Every tensor of a directory is the GGUF file's of that name, bit for bit but for A = -exp(A_log),
// which GGUF holds as NumPy rounds it. (qwen35's value heads and falcon-h1's multipliers apart.)
class HfTensors : public ::testing::TestWithParam<const char*> {};

std::vector<float> ReadFloats(const TensorSource& source, const std::string& name) {
  const auto tensor = source.Get(name);
  EXPECT_TRUE(tensor.ok()) << tensor.status().ToString();
  int64_t elements = 1;
  for (const int64_t dim : tensor->shape) elements *= dim;
  std::vector<float> values(static_cast<size_t>(elements));
  DequantizeRow(tensor->type, tensor->bytes, values);
  return values;
}

TEST_P(HfTensors, EqualThoseOfGguf) {
  const std::string directory = testing::kGoldenData + GetParam();
  const auto hf = OpenModelFile(directory + "/hf"), gguf = OpenModelFile(directory + "/model.gguf");
  ASSERT_TRUE(hf.ok()) << hf.status().ToString();
  ASSERT_TRUE(gguf.ok());
  const auto from_hf = (*hf)->OpenTensors(), from_gguf = (*gguf)->OpenTensors();
  EXPECT_EQ((*hf)->ListTensors().size(), (*gguf)->ListTensors().size());
  for (const TensorInfo& tensor : (*gguf)->ListTensors()) {
    ASSERT_TRUE(from_hf->Has(tensor.name)) << tensor.name;
    const std::vector<float> a = ReadFloats(*from_hf, tensor.name);
    const std::vector<float> b = ReadFloats(*from_gguf, tensor.name);
    ASSERT_EQ(a.size(), b.size()) << tensor.name;
    if (!tensor.name.ends_with("ssm_a")) {
      EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0) << tensor.name;
      continue;
    }
    for (size_t i = 0; i < a.size(); ++i) EXPECT_LE(std::abs(a[i] / b[i] - 1), 0x1p-23) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, HfTensors,
                         ::testing::Values("llama-a", "llama-b", "qwen3", "lfm2", "gemma3",
                                           "granite-h", "mamba2", "nemotron-h", "qwen3-next",
                                           "kimi-linear"),
                         [](const auto& info) { return CaseName(info.param); });

// The numbers that decide how much memory a model takes do not depend on its format.
TEST(HfInspect, FactsEqualThoseOfGguf) {
  for (const char* name : {"qwen35-a", "llama-a", "granite-h"}) {
    const std::string directory = testing::kGoldenData + name;
    const auto hf = OpenModelFile(directory + "/hf");
    const auto gguf = OpenModelFile(directory + "/model.gguf");
    ASSERT_TRUE(hf.ok() && gguf.ok());
    const auto a = InspectModel(**hf, KvType::kF16), b = InspectModel(**gguf, KvType::kF16);
    ASSERT_TRUE(a.ok()) << a.status().ToString();
    ASSERT_TRUE(b.ok()) << b.status().ToString();
    EXPECT_EQ(a->architecture, b->architecture);
    EXPECT_EQ(a->state_bytes, b->state_bytes);
    EXPECT_EQ(a->checkpoint_bytes, b->checkpoint_bytes);
    EXPECT_EQ(a->kv_bytes_per_token, b->kv_bytes_per_token);
    EXPECT_EQ(a->attention_layers, b->attention_layers);
    EXPECT_EQ(a->trained_context_length, b->trained_context_length);
    EXPECT_EQ(a->parameter_count, b->parameter_count);
  }
}

}  // namespace
}  // namespace cairn
