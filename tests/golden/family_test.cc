// Architectures and rope scalings without a fixture: tiny files with random weights are made here,
// and the models, on every CPU level, are judged by the scalar reference of the same equations.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/kernel_faults.h"
#include "model/decoder_model.h"
#include "model/gguf.h"
#include "model/load.h"
#include "model/reference/reference_model.h"
#include "support/golden.h"
#include "support/model_runner.h"
#include "support/quantised_file.h"
#include "support/random_file.h"

namespace cairn {
namespace {

using testing::kExpertFfn;
using testing::kExperts;
using testing::kFfn;
using testing::kHeadDim;
using testing::kHeads;
using testing::kHidden;
using testing::kLayers;
using testing::kUsed;
using testing::kVocab;
using testing::LayerPrefix;
using testing::RandomFamily;
using testing::RandomFile;

// The float limits of tests/golden/README.md; logits here have a standard deviation of about one.
constexpr double kLogitsMax = 1e-3;
constexpr double kStatesMax = 1e-4;
constexpr int kTokens = 90;

RandomFile Rope(const std::string& type) {
  RandomFile m = RandomFamily("llama");
  m.String("rope.scaling.type", type).U32("rope.scaling.original_context_length", 64);
  if (type != "longrope") m.F32("rope.scaling.factor", 4.0f);
  return m;
}

RandomFile LongRope(float attention_factor) {
  RandomFile m = Rope("longrope");
  m.F32("rope.scaling.attn_factor", attention_factor);
  m.Vector("rope_factors_long.weight", kHeadDim / 2, 4, 0.5f);
  return std::move(m.Vector("rope_factors_short.weight", kHeadDim / 2, 1, 0.05f));
}

void KimiDelta(RandomFile& m, const std::string& p, int d) {
  for (const std::string part : {"q", "k", "v"}) {
    m.Matrix(p + "attn_" + part + ".weight", kHeads * d, kHidden);
    m.Matrix(p + "ssm_conv1d_" + part + ".weight", kHeads * d, 3);
  }
  for (const std::string part : {"f", "g"}) {
    m.Matrix(p + "ssm_" + part + "_a.weight", d, kHidden);
    m.Matrix(p + "ssm_" + part + "_b.weight", kHeads * d, d);
  }
  m.Matrix(p + "ssm_beta.weight", kHeads, kHidden);
  m.Vector(p + "ssm_a", kHeads, -1, 0.2f).Vector(p + "ssm_dt.bias", kHeads * d, 0, 1);
  m.Norm(p + "ssm_norm.weight", d).Matrix(p + "attn_output.weight", kHidden, kHeads * d);
}

// No experts; rows of latent attention as given (the published model's are 512 + 64), and keys of a
// head wider than its values.
RandomFile KimiLinear(int latent, int shared) {
  constexpr int kDelta = 48, kKey = 24, kValue = 12;
  RandomFile m("kimi-linear", 13);
  m.I32s("attention.head_count_kv", {0, 1, 0, 0, 1}).U32("attention.kv_lora_rank", latent);
  m.U32("attention.key_length", latent + shared).U32("attention.value_length", kValue);
  m.U32("attention.key_length_mla", kKey + shared).U32("attention.value_length_mla", kValue);
  m.U32("kda.head_dim", kDelta).U32("ssm.conv_kernel", 3);
  m.Norm("output_norm.weight", kHidden);
  for (int i = 0; i < kLayers; ++i) {
    const std::string p = LayerPrefix(i);
    m.Norm(p + "attn_norm.weight", kHidden).Norm(p + "ffn_norm.weight", kHidden);
    m.Ffn(p, "", kFfn);
    if (i != 1 && i != 4) {
      KimiDelta(m, p, kDelta);
      continue;
    }
    m.Matrix(p + "attn_q.weight", kHeads * (kKey + shared), kHidden);
    m.Matrix(p + "attn_kv_a_mqa.weight", latent + shared, kHidden);
    m.Norm(p + "attn_kv_a_norm.weight", latent);
    m.Experts(p + "attn_k_b.weight", kHeads, latent, kKey);
    m.Experts(p + "attn_v_b.weight", kHeads, kValue, latent);
    m.Matrix(p + "attn_output.weight", kHidden, kHeads * kValue);
  }
  return m;
}

struct Case {
  std::string name;
  std::function<RandomFile()> make;
  bool trimmable = true;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

std::vector<Case> Cases() {
  return {{"qwen2", [] { return RandomFamily("qwen2"); }},
          {"qwen3", [] { return RandomFamily("qwen3"); }},
          {"smollm3", [] { return RandomFamily("smollm3"); }},
          {"smollm3_rotary_layers",
           [] { return RandomFamily("smollm3").I32s("rope.rotary_layers", {0, 1, 1, 0, 1}); }},
          {"mistral3", [] { return RandomFamily("mistral3"); }},
          {"mixtral", [] { return RandomFamily("mixtral"); }},
          {"qwen2moe", [] { return RandomFamily("qwen2moe"); }},
          {"qwen3moe", [] { return RandomFamily("qwen3moe"); }},
          {"lfm2moe", [] { return RandomFamily("lfm2moe"); }, false},
          {"qwen35moe", [] { return RandomFamily("qwen35moe"); }, false},
          {"kimi_linear_wide", [] { return KimiLinear(512, 64); }, false},
          {"kimi_linear_narrow", [] { return KimiLinear(16, 8); }, false},
          {"linear", [] { return Rope("linear"); }},
          {"yarn", [] { return Rope("yarn"); }},
          {"longrope", [] { return LongRope(1.2f); }}};
}

std::vector<Token> SomeTokens() {
  std::mt19937 random(3);
  std::vector<Token> tokens(kTokens);
  for (Token& t : tokens) t = static_cast<Token>(random() % kVocab);
  return tokens;
}

double StatesError(const std::vector<StateTensor>& got, const std::vector<StateTensor>& want) {
  EXPECT_EQ(got.size(), want.size());
  double worst = 0;
  for (size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
    EXPECT_EQ(got[i].name, want[i].name);
    EXPECT_EQ(got[i].shape, want[i].shape) << got[i].name;
    double scale = 1;
    for (const float x : want[i].data) scale = std::max<double>(scale, std::abs(x));
    for (size_t j = 0; j < want[i].data.size(); ++j) {
      const double error = std::abs(static_cast<double>(got[i].data[j]) - want[i].data[j]) / scale;
      if (!(error <= worst)) worst = error;
    }
  }
  return worst;
}

class RandomFiles : public ::testing::TestWithParam<Case> {};

// With faults that plant nothing every pass runs alone: matmuls, gates, norms, int8 forms.
TEST_P(RandomFiles, FusedPassesGiveTheBitsOfSeparateOnes) {
  const std::vector<std::byte> bytes = GetParam().make().Bytes();
  const auto floats = GgufFile::FromBytes(bytes);
  ASSERT_TRUE(floats.ok()) << floats.status().ToString();
  const std::vector<std::byte> quantised = testing::QuantisedCopy(*floats);
  const auto file = GgufFile::FromBytes(quantised);
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  const auto model =
      LoadModel(*file, {.kv_type = KvType::kF16, .context_length = {}, .progress = {}});
  ASSERT_TRUE(model.ok()) << model.status().ToString();
  const std::vector<Token> tokens = SomeTokens();
  const KernelFaults none;
  for (const int chunk : {kTokens, 1}) {
    std::vector<float> logits[2];
    for (const bool fused : {false, true}) {
      testing::ModelRunner runner(**model, SupportedCpuLevels().back(), 2, kTokens,
                                  fused ? nullptr : &none);
      testing::TestSequence sequence(**model);
      const int chunks[] = {chunk};
      logits[fused] = runner.Feed(sequence, tokens, chunks);
    }
    ASSERT_EQ(logits[0].size(), logits[1].size());
    EXPECT_EQ(std::memcmp(logits[0].data(), logits[1].data(), logits[0].size() * sizeof(float)), 0)
        << "chunk " << chunk;
  }
}

TEST_P(RandomFiles, EqualTheReferenceOnEveryLevel) {
  const std::vector<std::byte> bytes = GetParam().make().Bytes();
  const auto file = GgufFile::FromBytes(bytes);
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  const auto reference = LoadReferenceModel(*file);
  ASSERT_TRUE(reference.ok()) << reference.status().ToString();
  const auto model =
      LoadModel(*file, {.kv_type = KvType::kF32, .context_length = {}, .progress = {}});
  ASSERT_TRUE(model.ok()) << model.status().ToString();
  EXPECT_EQ((*model)->layout().trimmable(), GetParam().trimmable);

  const std::vector<Token> tokens = SomeTokens();
  std::vector<int> rows(kTokens);
  for (int i = 0; i < kTokens; ++i) rows[i] = i;
  const auto want = (*reference)->Run(tokens, rows);
  std::vector<float> first;
  for (const CpuLevel level : SupportedCpuLevels()) {
    for (const int chunk : {kTokens, 1, 23}) {
      if (level == CpuLevel::kScalar && chunk == 1) continue;
      testing::ModelRunner runner(**model, level, 2, kTokens);
      testing::TestSequence sequence(**model);
      const int chunks[] = {chunk};
      const std::vector<float> logits = runner.Feed(sequence, tokens, chunks);
      if (first.empty()) {
        first = logits;
        double worst = 0, squares = 0;
        for (int t = 0; t < kTokens; ++t) {
          for (int i = 0; i < kVocab; ++i) {
            const double error = std::abs(logits[t * kVocab + i] - want.logits[t][i]);
            if (!(error <= worst)) worst = error;
            squares += want.logits[t][i] * want.logits[t][i];
          }
        }
        const double states = StatesError(
            ExportState(**model, sequence.state(), sequence.blocks(), sequence.position),
            want.states);
        std::printf("%s: logits %.2e (rms %.2f), states %.2e\n", GetParam().name.c_str(), worst,
                    std::sqrt(squares / (kTokens * kVocab)), states);
        EXPECT_LE(worst, kLogitsMax);
        EXPECT_LE(states, kStatesMax);
      }
      EXPECT_EQ(std::memcmp(first.data(), logits.data(), first.size() * sizeof(float)), 0)
          << CpuLevelName(level) << " in chunks of " << chunk;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Files, RandomFiles, ::testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.name; });

TEST(KimiLinear, RowsThatTheAttentionKernelDoesNotTakeAreRefused) {
  for (const auto& [latent, shared] : {std::pair{520, 64}, {512, 60}}) {
    const std::vector<std::byte> bytes = KimiLinear(latent, shared).Bytes();
    const auto file = GgufFile::FromBytes(bytes);
    ASSERT_TRUE(file.ok());
    const auto model =
        LoadModel(*file, {.kv_type = KvType::kF32, .context_length = {}, .progress = {}});
    ASSERT_FALSE(model.ok());
    EXPECT_EQ(model.status().code(), StatusCode::kUnsupported);
    EXPECT_NE(model.status().ToString().find("at most 576"), std::string::npos);
  }
}

// Of the experts a token reads those it goes to, of an untied embedding one row.
TEST(Experts, OfADecodedTokenAreThoseItGoesTo) {
  const std::vector<std::byte> bytes = RandomFamily("qwen3moe").Bytes();
  const auto file = GgufFile::FromBytes(bytes);
  ASSERT_TRUE(file.ok());
  const auto model =
      LoadModel(*file, {.kv_type = KvType::kF32, .context_length = {}, .progress = {}});
  ASSERT_TRUE(model.ok()) << model.status().ToString();
  const size_t idle = size_t{kLayers} * (kExperts - kUsed) * 3 * kExpertFfn * kHidden;
  const ModelInfo& info = (*model)->info();
  EXPECT_EQ(info.weight_bytes - info.bytes_per_decode_token,
            (idle + size_t{kVocab} * kHidden) * sizeof(float));
}

// Within the original context LongRoPE takes its short factors, beyond it the long ones.
TEST(LongRope, TheContextInForceChoosesTheFactors) {
  const std::vector<std::byte> bytes = LongRope(1.0f).Bytes();
  const auto file = GgufFile::FromBytes(bytes);
  ASSERT_TRUE(file.ok());
  const auto fingerprint = [&](int64_t context) {
    const auto model =
        LoadModel(*file, {.kv_type = KvType::kF32, .context_length = context, .progress = {}});
    return model.ok() ? (*model)->info().fingerprint : 0;
  };
  EXPECT_NE(fingerprint(64), 0u);
  EXPECT_EQ(fingerprint(32), fingerprint(64));
  EXPECT_NE(fingerprint(64), fingerprint(65));
  EXPECT_EQ(fingerprint(65), fingerprint(512));
}

}  // namespace
}  // namespace cairn
