// The scalar reference models against the golden fixtures: both are float64 from the same
// equations, so what is left is the rounding of stored float32 values.
#include <gtest/gtest.h>

#include <cmath>

#include "model/gguf.h"
#include "model/reference/reference_model.h"
#include "support/golden.h"

namespace cairn {
namespace {

using testing::GoldenCase;
using testing::GoldenSet;
using testing::LogitsError;

// Logits and norm weights are rounded to float32 in the fixtures (a GGUF of qwen35 holds 1 + w);
// 1e-7 of values up to 15, grown a little by the layers above; 3e-6 and 3e-7 were measured.
constexpr double kLogitsMax = 1e-5;
constexpr double kStatesMax = 1e-6;
// One row of qwen3-next is sensitive to just that rounding: the numpy reference, given float32(1 +
// w), is off by the same 2.17e-5.
constexpr double kNextLogitsMax = 5e-5;

std::unique_ptr<ReferenceModel> Load(const std::string& path) {
  auto file = GgufFile::Open(path);
  EXPECT_TRUE(file.ok()) << file.status().ToString();
  auto model = LoadReferenceModel(*file);
  EXPECT_TRUE(model.ok()) << model.status().ToString();
  return std::move(*model);
}

void ExpectStates(const GoldenSet& set, const std::vector<StateTensor>& states) {
  double worst = 0;
  for (const StateTensor& state : states) {
    const auto stored = testing::ReadNpy(set.directory + "states/" + state.name + ".npy");
    ASSERT_EQ(stored.shape, state.shape) << state.name;
    double max = 1;
    for (const float x : stored.data) max = std::max<double>(max, std::abs(x));
    for (size_t i = 0; i < stored.data.size(); ++i) {
      const double error = std::abs(static_cast<double>(state.data[i]) - stored.data[i]) / max;
      EXPECT_LE(error, kStatesMax) << state.name << " at " << i;
      worst = std::max(worst, error);
    }
  }
  std::printf("  states: worst %.2e\n", worst);
}

class ReferenceGolden : public ::testing::TestWithParam<const char*> {};

TEST_P(ReferenceGolden, LogitsAndStatesEqualTheFixture) {
  const std::string name = GetParam();
  const GoldenSet set = testing::LoadGoldenSet(name);
  const auto model = Load(set.directory + "model.gguf");
  LogitsError error(set.logits.shape[1]);
  for (const GoldenCase& c : set.cases) {
    const auto output = model->Run(c.tokens, c.positions);
    for (size_t i = 0; i < c.positions.size(); ++i) {
      error.Add(set.Row(c, i), output.logits[i].data());
    }
    if (c.states) ExpectStates(set, output.states);
  }
  std::printf("%s reference: %s\n", name.c_str(), error.ToString().c_str());
  EXPECT_LE(error.max_abs(), name == "qwen3-next" ? kNextLogitsMax : kLogitsMax);
  EXPECT_EQ(error.argmax_errors(), 0);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, ReferenceGolden,
                         ::testing::Values("qwen35-a", "qwen35-b", "llama-a", "llama-b", "qwen3",
                                           "lfm2", "gemma3", "qwen3-next", "kimi-linear"));

INSTANTIATE_TEST_SUITE_P(Mamba2Fixtures, ReferenceGolden,
                         ::testing::Values("mamba2", "granite-h", "falcon-h1", "nemotron-h"));

struct QuantCase {
  const char* name;
  const char* type;
};
class ReferenceQuant : public ::testing::TestWithParam<QuantCase> {};

TEST_P(ReferenceQuant, LogitsEqualThoseOfTheDequantisedWeights) {
  const auto [name, type] = GetParam();
  const std::string directory = std::string("quant/") + name;
  const GoldenSet set = testing::LoadGoldenSet(directory, type);
  const auto model = Load(set.directory + type + ".gguf");
  LogitsError error(set.logits.shape[1]);
  for (const GoldenCase& c : set.cases) {
    const auto output = model->Run(c.tokens, c.positions);
    for (size_t i = 0; i < c.positions.size(); ++i) {
      error.Add(set.Row(c, i), output.logits[i].data());
    }
  }
  std::printf("%s %s reference: %s\n", name, type, error.ToString().c_str());
  EXPECT_LE(error.max_abs(), kLogitsMax);
}

INSTANTIATE_TEST_SUITE_P(
    Variants, ReferenceQuant,
    ::testing::Values(QuantCase{"qwen35-a", "Q8_0"}, QuantCase{"qwen35-a", "Q4_0"},
                      QuantCase{"qwen35-a", "BF16"}, QuantCase{"llama-a", "Q8_0"},
                      QuantCase{"llama-a", "Q4_0"}, QuantCase{"llama-a", "BF16"},
                      QuantCase{"qwen35-k256", "Q4_K_M"}, QuantCase{"qwen35-k256", "Q5_K_M"},
                      QuantCase{"qwen35-k256", "Q6_K"}, QuantCase{"llama-k256", "Q4_K_M"},
                      QuantCase{"llama-k256", "Q5_K_M"}, QuantCase{"llama-k256", "Q6_K"},
                      QuantCase{"lfm2", "Q8_0"}, QuantCase{"lfm2-k256", "Q4_K_M"}),
    [](const auto& info) {
      std::string name = std::string(info.param.name) + "_" + info.param.type;
      std::replace(name.begin(), name.end(), '-', '_');
      return name;
    });

}  // namespace
}  // namespace cairn
