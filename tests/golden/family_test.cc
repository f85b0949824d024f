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
#include "support/gguf_writer.h"
#include "support/golden.h"
#include "support/model_runner.h"
#include "support/quantised_file.h"

namespace cairn {
namespace {

using testing::GgufWriter;

// The float limits of tests/golden/README.md; logits here have a standard deviation of about one.
constexpr double kLogitsMax = 1e-3;
constexpr double kStatesMax = 1e-4;
constexpr int kTokens = 90;
constexpr int kVocab = 96, kHidden = 64, kLayers = 5, kHeads = 4, kKvHeads = 2, kHeadDim = 16;
constexpr int kFfn = 96, kExpertFfn = 32, kSharedFfn = 48, kExperts = 6, kUsed = 2;

// Keys and tensors of a random model.
class Maker {
 public:
  Maker(std::string arch, uint32_t seed) : arch_(std::move(arch)), random_(seed) {
    w_.String("general.architecture", arch_).String("general.name", arch_);
    U32("block_count", kLayers).U32("context_length", 512).U32("embedding_length", kHidden);
    U32("feed_forward_length", kFfn).U32("attention.head_count", kHeads);
    F32("attention.layer_norm_rms_epsilon", 1e-5f).F32("rope.freq_base", 10000.0f);
    Matrix("token_embd.weight", kVocab, kHidden);
    Matrix("output.weight", kVocab, kHidden);
  }

  Maker& U32(const std::string& key, uint32_t value) {
    w_.U32(arch_ + "." + key, value);
    return *this;
  }
  Maker& F32(const std::string& key, float value) {
    w_.F32(arch_ + "." + key, value);
    return *this;
  }
  Maker& Bool(const std::string& key, bool value) {
    w_.Bool(arch_ + "." + key, value);
    return *this;
  }
  Maker& String(const std::string& key, const std::string& value) {
    w_.String(arch_ + "." + key, value);
    return *this;
  }
  Maker& I32s(const std::string& key, const std::vector<int32_t>& values) {
    w_.I32s(arch_ + "." + key, values);
    return *this;
  }

  // Rows of unit variance in, unit variance out.
  Maker& Matrix(const std::string& name, int n, int k) { return Experts(name, 1, n, k); }
  Maker& Experts(const std::string& name, int experts, int n, int k) {
    const size_t count = static_cast<size_t>(experts) * n * k;
    std::vector<uint64_t> dims = {static_cast<uint64_t>(k), static_cast<uint64_t>(n)};
    if (experts > 1) dims.push_back(experts);
    w_.TensorF32s(name, dims, Normal(count, 0, 1 / std::sqrt(static_cast<float>(k))));
    return *this;
  }
  Maker& Vector(const std::string& name, int n, float mean, float deviation) {
    w_.TensorF32s(name, {static_cast<uint64_t>(n)}, Normal(n, mean, deviation));
    return *this;
  }
  Maker& Norm(const std::string& name, int n) { return Vector(name, n, 1, 0.2f); }

  Maker& Attention(const std::string& p, bool biases, bool head_norms) {
    for (const auto& [name, heads] :
         {std::pair{"attn_q", kHeads}, {"attn_k", kKvHeads}, {"attn_v", kKvHeads}}) {
      Matrix(p + name + ".weight", heads * kHeadDim, kHidden);
      if (biases) Vector(p + name + ".bias", heads * kHeadDim, 0, 0.5f);
    }
    if (head_norms) {
      Norm(p + "attn_q_norm.weight", kHeadDim);
      Norm(p + "attn_k_norm.weight", kHeadDim);
    }
    return Matrix(p + "attn_output.weight", kHidden, kHeads * kHeadDim);
  }
  Maker& Ffn(const std::string& p, const std::string& suffix, int ffn) {
    Matrix(p + "ffn_gate" + suffix + ".weight", ffn, kHidden);
    Matrix(p + "ffn_up" + suffix + ".weight", ffn, kHidden);
    return Matrix(p + "ffn_down" + suffix + ".weight", kHidden, ffn);
  }
  Maker& Moe(const std::string& p, bool merged) {
    Matrix(p + "ffn_gate_inp.weight", kExperts, kHidden);
    if (merged) {
      Experts(p + "ffn_gate_up_exps.weight", kExperts, 2 * kExpertFfn, kHidden);
    } else {
      Experts(p + "ffn_gate_exps.weight", kExperts, kExpertFfn, kHidden);
      Experts(p + "ffn_up_exps.weight", kExperts, kExpertFfn, kHidden);
    }
    return Experts(p + "ffn_down_exps.weight", kExperts, kHidden, kExpertFfn);
  }
  Maker& MoeKeys() {
    U32("expert_count", kExperts).U32("expert_used_count", kUsed);
    return U32("expert_feed_forward_length", kExpertFfn);
  }

  std::vector<std::byte> Bytes() const { return w_.Bytes(); }

 private:
  std::vector<float> Normal(size_t count, float mean, float deviation) {
    std::normal_distribution<float> normal(mean, deviation);
    std::vector<float> values(count);
    for (float& v : values) v = normal(random_);
    return values;
  }

  std::string arch_;
  std::mt19937 random_;
  GgufWriter w_;
};

std::string Prefix(int layer) { return "blk." + std::to_string(layer) + "."; }

// A decoder of the Llama family.
Maker Family(const std::string& arch, bool biases, bool head_norms, bool moe, bool shared) {
  Maker m(arch, 7);
  m.U32("attention.head_count_kv", kKvHeads).U32("rope.dimension_count", kHeadDim);
  m.Norm("output_norm.weight", kHidden);
  if (moe) m.MoeKeys();
  if (shared) m.U32("expert_shared_feed_forward_length", kSharedFfn);
  for (int i = 0; i < kLayers; ++i) {
    const std::string p = Prefix(i);
    m.Norm(p + "attn_norm.weight", kHidden).Norm(p + "ffn_norm.weight", kHidden);
    m.Attention(p, biases, head_norms);
    if (!moe) m.Ffn(p, "", kFfn);
    if (moe) m.Moe(p, false);
    if (shared)
      m.Ffn(p, "_shexp", kSharedFfn).Vector(p + "ffn_gate_inp_shexp.weight", kHidden, 0, 0.1f);
  }
  return m;
}

Maker Rope(const std::string& type) {
  Maker m = Family("llama", false, false, false, false);
  m.String("rope.scaling.type", type).U32("rope.scaling.original_context_length", 64);
  if (type != "longrope") m.F32("rope.scaling.factor", 4.0f);
  return m;
}

Maker LongRope(float attention_factor) {
  Maker m = Rope("longrope");
  m.F32("rope.scaling.attn_factor", attention_factor);
  m.Vector("rope_factors_long.weight", kHeadDim / 2, 4, 0.5f);
  return std::move(m.Vector("rope_factors_short.weight", kHeadDim / 2, 1, 0.05f));
}

Maker Lfm2Moe() {
  Maker m("lfm2moe", 9);
  m.I32s("attention.head_count_kv", {0, kKvHeads, 0, kKvHeads, 0}).U32("shortconv.l_cache", 3);
  m.MoeKeys().U32("leading_dense_block_count", 1).U32("expert_gating_func", 2);
  m.Norm("token_embd_norm.weight", kHidden);
  for (int i = 0; i < kLayers; ++i) {
    const std::string p = Prefix(i);
    m.Norm(p + "attn_norm.weight", kHidden).Norm(p + "ffn_norm.weight", kHidden);
    if (i % 2 == 1) {
      m.Attention(p, false, true);
    } else {
      m.Matrix(p + "shortconv.in_proj.weight", 3 * kHidden, kHidden);
      m.Matrix(p + "shortconv.conv.weight", kHidden, 3);
      m.Matrix(p + "shortconv.out_proj.weight", kHidden, kHidden);
    }
    if (i == 0) {
      m.Ffn(p, "", kFfn);
    } else {
      m.Moe(p, false).Vector(p + "exp_probs_b.bias", kExperts, 0, 0.2f);
    }
  }
  return m;
}

// Value heads tiled over the key heads; experts with gate and up in one tensor.
Maker Qwen35Moe() {
  constexpr int kKeyHeads = 2, kValueHeads = 4, kDelta = 16;
  constexpr int kValues = kValueHeads * kDelta, kChannels = 2 * kKeyHeads * kDelta + kValues;
  Maker m("qwen35moe", 11);
  m.U32("attention.head_count_kv", kKvHeads).U32("attention.key_length", kHeadDim);
  m.U32("attention.value_length", kHeadDim).U32("rope.dimension_count", 8);
  m.U32("ssm.conv_kernel", 4).U32("ssm.state_size", kDelta).U32("ssm.group_count", kKeyHeads);
  m.U32("ssm.time_step_rank", kValueHeads).U32("ssm.inner_size", kValues);
  m.U32("full_attention_interval", 3);
  m.MoeKeys().U32("expert_shared_feed_forward_length", kSharedFfn);
  m.Norm("output_norm.weight", kHidden);
  for (int i = 0; i < kLayers; ++i) {
    const std::string p = Prefix(i);
    m.Norm(p + "attn_norm.weight", kHidden).Norm(p + "post_attention_norm.weight", kHidden);
    if ((i + 1) % 3 == 0) {
      m.Matrix(p + "attn_q.weight", 2 * kHeads * kHeadDim, kHidden);
      m.Matrix(p + "attn_k.weight", kKvHeads * kHeadDim, kHidden);
      m.Matrix(p + "attn_v.weight", kKvHeads * kHeadDim, kHidden);
      m.Matrix(p + "attn_output.weight", kHidden, kHeads * kHeadDim);
      m.Norm(p + "attn_q_norm.weight", kHeadDim).Norm(p + "attn_k_norm.weight", kHeadDim);
    } else {
      m.Matrix(p + "attn_qkv.weight", kChannels, kHidden);
      m.Matrix(p + "attn_gate.weight", kValues, kHidden);
      m.Matrix(p + "ssm_beta.weight", kValueHeads, kHidden);
      m.Matrix(p + "ssm_alpha.weight", kValueHeads, kHidden);
      m.Matrix(p + "ssm_conv1d.weight", kChannels, 4);
      m.Vector(p + "ssm_a", kValueHeads, -1, 0.2f).Vector(p + "ssm_dt.bias", kValueHeads, 0, 1);
      m.Norm(p + "ssm_norm.weight", kDelta).Matrix(p + "ssm_out.weight", kHidden, kValues);
    }
    m.Moe(p, true).Ffn(p, "_shexp", kSharedFfn);
    m.Vector(p + "ffn_gate_inp_shexp.weight", kHidden, 0, 0.1f);
  }
  return m;
}

void KimiDelta(Maker& m, const std::string& p, int d) {
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
Maker KimiLinear(int latent, int shared) {
  constexpr int kDelta = 48, kKey = 24, kValue = 12;
  Maker m("kimi-linear", 13);
  m.I32s("attention.head_count_kv", {0, 1, 0, 0, 1}).U32("attention.kv_lora_rank", latent);
  m.U32("attention.key_length", latent + shared).U32("attention.value_length", kValue);
  m.U32("attention.key_length_mla", kKey + shared).U32("attention.value_length_mla", kValue);
  m.U32("kda.head_dim", kDelta).U32("ssm.conv_kernel", 3);
  m.Norm("output_norm.weight", kHidden);
  for (int i = 0; i < kLayers; ++i) {
    const std::string p = Prefix(i);
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
  std::function<Maker()> make;
  bool trimmable = true;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

std::vector<Case> Cases() {
  return {{"qwen2", [] { return Family("qwen2", true, false, false, false); }},
          {"qwen3", [] { return Family("qwen3", false, true, false, false); }},
          {"smollm3", [] { return Family("smollm3", false, false, false, false); }},
          {"mistral3", [] { return Family("mistral3", false, false, false, false); }},
          {"mixtral", [] { return Family("llama", false, false, true, false); }},
          {"qwen2moe", [] { return Family("qwen2moe", true, false, true, true); }},
          {"qwen3moe", [] { return Family("qwen3moe", false, true, true, false); }},
          {"lfm2moe", Lfm2Moe, false},
          {"qwen35moe", Qwen35Moe, false},
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
  const std::vector<std::byte> bytes = Family("qwen3moe", false, true, true, false).Bytes();
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
