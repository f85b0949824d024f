// The models against the golden fixtures, on every CPU level of this machine. The limits and where
// they come from: README.md.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "model/decoder_model.h"
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

constexpr double kLogitsMax = 1e-3;
constexpr double kLogitsRmsPerStd = 2e-5;
constexpr double kStatesMax = 1e-4;
constexpr double kQuantMedian = 1.4, kQuantMean = 1.6, kQuantMax = 4;
constexpr double kHalfKv = 2;
constexpr int kRowsMax = 128;
constexpr int kThreads = 2;

std::unique_ptr<Model> Load(const std::string& path, KvType kv_type) {
  auto file = GgufFile::Open(path);
  EXPECT_TRUE(file.ok()) << file.status().ToString();
  auto model = LoadModel(*file, {.kv_type = kv_type, .context_length = {}, .progress = {}});
  EXPECT_TRUE(model.ok()) << model.status().ToString();
  return std::move(*model);
}

// Runs every case in chunks of kRowsMax; at_end(case, sequence) sees each sequence at its end.
template <typename AtEnd>
LogitsError RunCases(const Model& model, CpuLevel level, const GoldenSet& set, AtEnd&& at_end) {
  ModelRunner runner(model, level, kThreads, kRowsMax);
  const int64_t vocab = model.info().vocab_size;
  EXPECT_EQ(vocab, set.logits.shape[1]);
  LogitsError error(vocab);
  const int chunks[] = {kRowsMax};
  for (const GoldenCase& c : set.cases) {
    TestSequence sequence(model);
    const std::vector<float> logits = runner.Feed(sequence, c.tokens, chunks);
    for (size_t i = 0; i < c.positions.size(); ++i) {
      error.Add(set.Row(c, i), &logits[c.positions[i] * vocab]);
    }
    at_end(c, sequence);
  }
  return error;
}

// Largest |difference| / max(1, max |state|) over all state tensors.
double StatesError(const GoldenSet& set, const std::vector<StateTensor>& states) {
  double worst = 0;
  for (const StateTensor& state : states) {
    const auto stored = testing::LastPositions(
        testing::ReadNpy(set.directory + "states/" + state.name + ".npy"), state.shape);
    EXPECT_EQ(stored.shape, state.shape) << state.name;
    double scale = 1;
    for (const float x : stored.data) scale = std::max<double>(scale, std::abs(x));
    for (size_t i = 0; i < stored.data.size(); ++i) {
      const double error = std::abs(static_cast<double>(state.data[i]) - stored.data[i]) / scale;
      if (!(error <= worst)) worst = error;  // NaN stays
    }
  }
  return worst;
}

std::string CaseName(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

class FloatGolden : public ::testing::TestWithParam<std::tuple<const char*, CpuLevel>> {
 protected:
  std::string name() const { return std::get<0>(GetParam()); }
  CpuLevel level() const { return std::get<1>(GetParam()); }
};

TEST_P(FloatGolden, LogitsAndStatesWithFloatKv) {
  const GoldenSet set = testing::LoadGoldenSet(name());
  const auto model = Load(set.directory + "model.gguf", KvType::kF32);
  double states = 0;
  int states_seen = 0;
  const LogitsError error =
      RunCases(*model, level(), set, [&](const GoldenCase& c, TestSequence& sequence) {
        if (!c.states) return;
        ++states_seen;
        states = StatesError(
            set, ExportState(*model, sequence.state(), sequence.blocks(), sequence.position));
      });
  std::printf("%s %s f32: %s states %.2e\n", name().c_str(), CpuLevelName(level()),
              error.ToString().c_str(), states);
  EXPECT_LE(error.max_abs(), kLogitsMax);
  EXPECT_LE(error.rms(), kLogitsRmsPerStd * set.LogitsStd());
  EXPECT_EQ(error.argmax_errors(), 0);
  EXPECT_EQ(states_seen, 1);
  EXPECT_LE(states, kStatesMax);
}

// Over every position, as the yardstick is: stored rows are denser where there are few keys, and
// there their rounding weighs more. What stands for the exact logits is the model with float KV,
// which the test above has compared with them.
TEST_P(FloatGolden, LogitsWithHalfKv) {
  const GoldenSet set = testing::LoadGoldenSet(name());
  const GoldenLoss yardstick = testing::LoadGoldenLoss(name(), "llama_defaults_vs_float64");
  const auto exact = Load(set.directory + "model.gguf", KvType::kF32);
  const auto half = Load(set.directory + "model.gguf", KvType::kF16);
  const int64_t vocab = exact->info().vocab_size;
  ModelRunner exact_runner(*exact, DetectCpuLevel(), kThreads, kRowsMax);
  ModelRunner half_runner(*half, level(), kThreads, kRowsMax);
  LogitsError error(vocab);
  const int chunks[] = {kRowsMax};
  for (const GoldenCase& c : set.cases) {
    TestSequence exact_sequence(*exact), half_sequence(*half);
    const auto want = exact_runner.Feed(exact_sequence, c.tokens, chunks);
    const auto got = half_runner.Feed(half_sequence, c.tokens, chunks);
    for (size_t i = 0; i < want.size(); i += vocab) error.Add(&want[i], &got[i]);
  }
  std::printf("%s %s f16: %s; llama.cpp mean %.2e max %.2e\n", name().c_str(),
              CpuLevelName(level()), error.ToString().c_str(), yardstick.kl_mean, yardstick.kl_max);
  EXPECT_LE(error.kl_mean(), kHalfKv * yardstick.kl_mean);
  EXPECT_LE(error.kl_max(), kHalfKv * yardstick.kl_max);
}

TEST_P(FloatGolden, GreedyContinuations) {
  const auto model = Load(testing::kGoldenData + name() + "/model.gguf", KvType::kF32);
  const int64_t vocab = model->info().vocab_size;
  ModelRunner runner(*model, level(), kThreads, kRowsMax);
  const int chunks[] = {kRowsMax};
  for (const auto& expected : testing::LoadContinuations(name())) {
    TestSequence sequence(*model);
    std::vector<float> logits = runner.Feed(sequence, expected.prompt, chunks);
    std::vector<Token> tokens;
    while (tokens.size() < expected.tokens.size()) {
      const auto last = logits.end() - vocab;
      tokens.push_back(static_cast<Token>(std::max_element(last, logits.end()) - last));
      logits = runner.Feed(sequence, std::span(tokens).last(1), chunks);
    }
    EXPECT_EQ(tokens, expected.tokens);
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, FloatGolden,
                         ::testing::Combine(::testing::Values("qwen35-a", "qwen35-b", "llama-a",
                                                              "llama-b", "qwen3", "lfm2", "gemma3",
                                                              "qwen3-next", "kimi-linear"),
                                            ::testing::ValuesIn(SupportedCpuLevels())),
                         [](const auto& info) {
                           return CaseName(std::string(std::get<0>(info.param)) + "_" +
                                           CpuLevelName(std::get<1>(info.param)));
                         });

INSTANTIATE_TEST_SUITE_P(Mamba2Fixtures, FloatGolden,
                         ::testing::Combine(::testing::Values("mamba2", "granite-h", "falcon-h1",
                                                              "nemotron-h"),
                                            ::testing::ValuesIn(SupportedCpuLevels())),
                         [](const auto& info) {
                           return CaseName(std::string(std::get<0>(info.param)) + "_" +
                                           CpuLevelName(std::get<1>(info.param)));
                         });

struct Variant {
  const char* name;
  const char* type;
};
class QuantGolden : public ::testing::TestWithParam<std::tuple<Variant, CpuLevel>> {};

TEST_P(QuantGolden, LogitsWithinTheYardstick) {
  const auto [variant, level] = GetParam();
  const std::string directory = std::string("quant/") + variant.name;
  const GoldenSet set = testing::LoadGoldenSet(directory, variant.type);
  const GoldenLoss yardstick = testing::LoadGoldenLoss(directory, variant.type, "yardstick");
  const auto model = Load(set.directory + variant.type + ".gguf", KvType::kF32);
  const LogitsError error = RunCases(*model, level, set, [](const GoldenCase&, TestSequence&) {});
  std::printf("%s %s %s: %s; of the yardstick: median %.2f mean %.2f max %.2f\n", variant.name,
              variant.type, CpuLevelName(level), error.ToString().c_str(),
              error.kl_median() / yardstick.kl_median, error.kl_mean() / yardstick.kl_mean,
              error.kl_max() / yardstick.kl_max);
  if (std::string_view(variant.type) == "BF16") {  // activations stay float32: the float limits
    EXPECT_LE(error.max_abs(), kLogitsMax);
    EXPECT_LE(error.rms(), kLogitsRmsPerStd * set.LogitsStd());
    return;
  }
  EXPECT_LE(error.kl_median(), kQuantMedian * yardstick.kl_median);
  EXPECT_LE(error.kl_mean(), kQuantMean * yardstick.kl_mean);
  EXPECT_LE(error.kl_max(), kQuantMax * yardstick.kl_max);
}

constexpr Variant kVariants[] = {
    {"qwen35-a", "Q8_0"},      {"qwen35-a", "Q4_0"},    {"qwen35-a", "BF16"},
    {"llama-a", "Q8_0"},       {"llama-a", "Q4_0"},     {"llama-a", "BF16"},
    {"qwen35-k256", "Q5_K_M"}, {"qwen35-k256", "Q6_K"}, {"llama-k256", "Q4_K_M"},
    {"llama-k256", "Q5_K_M"},  {"llama-k256", "Q6_K"},  {"qwen35-k256", "Q4_K_M"},
    {"lfm2", "Q8_0"},          {"lfm2", "Q4_0"},        {"lfm2-k256", "Q4_K_M"},
    {"lfm2-k256", "Q5_K_M"},   {"lfm2-k256", "Q6_K"}};

INSTANTIATE_TEST_SUITE_P(Variants, QuantGolden,
                         ::testing::Combine(::testing::ValuesIn(kVariants),
                                            ::testing::ValuesIn(SupportedCpuLevels())),
                         [](const auto& info) {
                           const Variant& variant = std::get<0>(info.param);
                           return CaseName(std::string(variant.name) + "_" + variant.type + "_" +
                                           CpuLevelName(std::get<1>(info.param)));
                         });

}  // namespace
}  // namespace cairn
