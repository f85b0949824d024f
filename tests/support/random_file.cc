#include "support/random_file.h"

#include <cmath>
#include <utility>

#include "base/check.h"

namespace cairn::testing {
namespace {

// A decoder of the Llama family.
RandomFile Decoder(const std::string& arch, bool biases, bool head_norms, bool moe, bool shared) {
  RandomFile m(arch, 7);
  m.U32("attention.head_count_kv", kKvHeads).U32("rope.dimension_count", kHeadDim);
  m.Norm("output_norm.weight", kHidden);
  if (moe) m.MoeKeys();
  if (shared) m.U32("expert_shared_feed_forward_length", kSharedFfn);
  for (int i = 0; i < kLayers; ++i) {
    const std::string p = LayerPrefix(i);
    m.Norm(p + "attn_norm.weight", kHidden).Norm(p + "ffn_norm.weight", kHidden);
    m.Attention(p, biases, head_norms);
    if (!moe) m.Ffn(p, "", kFfn);
    if (moe) m.Moe(p, false);
    if (shared)
      m.Ffn(p, "_shexp", kSharedFfn).Vector(p + "ffn_gate_inp_shexp.weight", kHidden, 0, 0.1f);
  }
  return m;
}

RandomFile Lfm2Moe() {
  RandomFile m("lfm2moe", 9);
  m.I32s("attention.head_count_kv", {0, kKvHeads, 0, kKvHeads, 0}).U32("shortconv.l_cache", 3);
  m.MoeKeys().U32("leading_dense_block_count", 1).U32("expert_gating_func", 2);
  m.Norm("token_embd_norm.weight", kHidden);
  for (int i = 0; i < kLayers; ++i) {
    const std::string p = LayerPrefix(i);
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
RandomFile Qwen35Moe() {
  constexpr int kKeyHeads = 2, kValueHeads = 4, kDelta = 16;
  constexpr int kValues = kValueHeads * kDelta, kChannels = 2 * kKeyHeads * kDelta + kValues;
  RandomFile m("qwen35moe", 11);
  m.U32("attention.head_count_kv", kKvHeads).U32("attention.key_length", kHeadDim);
  m.U32("attention.value_length", kHeadDim).U32("rope.dimension_count", 8);
  m.U32("ssm.conv_kernel", 4).U32("ssm.state_size", kDelta).U32("ssm.group_count", kKeyHeads);
  m.U32("ssm.time_step_rank", kValueHeads).U32("ssm.inner_size", kValues);
  m.U32("full_attention_interval", 3);
  m.MoeKeys().U32("expert_shared_feed_forward_length", kSharedFfn);
  m.Norm("output_norm.weight", kHidden);
  for (int i = 0; i < kLayers; ++i) {
    const std::string p = LayerPrefix(i);
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

}  // namespace

RandomFile::RandomFile(std::string arch, uint32_t seed) : arch_(std::move(arch)), random_(seed) {
  w_.String("general.architecture", arch_).String("general.name", arch_);
  U32("block_count", kLayers).U32("context_length", 512).U32("embedding_length", kHidden);
  U32("feed_forward_length", kFfn).U32("attention.head_count", kHeads);
  F32("attention.layer_norm_rms_epsilon", 1e-5f).F32("rope.freq_base", 10000.0f);
  Matrix("token_embd.weight", kVocab, kHidden);
  Matrix("output.weight", kVocab, kHidden);
}

RandomFile& RandomFile::U32(const std::string& key, uint32_t value) {
  w_.U32(arch_ + "." + key, value);
  return *this;
}

RandomFile& RandomFile::F32(const std::string& key, float value) {
  w_.F32(arch_ + "." + key, value);
  return *this;
}

RandomFile& RandomFile::String(const std::string& key, const std::string& value) {
  w_.String(arch_ + "." + key, value);
  return *this;
}

RandomFile& RandomFile::I32s(const std::string& key, const std::vector<int32_t>& values) {
  w_.I32s(arch_ + "." + key, values);
  return *this;
}

RandomFile& RandomFile::Experts(const std::string& name, int experts, int n, int k) {
  const size_t count = static_cast<size_t>(experts) * n * k;
  std::vector<uint64_t> dims = {static_cast<uint64_t>(k), static_cast<uint64_t>(n)};
  if (experts > 1) dims.push_back(experts);
  w_.TensorF32s(name, dims, Normal(count, 0, 1 / std::sqrt(static_cast<float>(k))));
  return *this;
}

RandomFile& RandomFile::Vector(const std::string& name, int n, float mean, float deviation) {
  w_.TensorF32s(name, {static_cast<uint64_t>(n)}, Normal(n, mean, deviation));
  return *this;
}

RandomFile& RandomFile::Attention(const std::string& p, bool biases, bool head_norms) {
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

RandomFile& RandomFile::Ffn(const std::string& p, const std::string& suffix, int ffn) {
  Matrix(p + "ffn_gate" + suffix + ".weight", ffn, kHidden);
  Matrix(p + "ffn_up" + suffix + ".weight", ffn, kHidden);
  return Matrix(p + "ffn_down" + suffix + ".weight", kHidden, ffn);
}

RandomFile& RandomFile::Moe(const std::string& p, bool merged) {
  Matrix(p + "ffn_gate_inp.weight", kExperts, kHidden);
  if (merged) {
    Experts(p + "ffn_gate_up_exps.weight", kExperts, 2 * kExpertFfn, kHidden);
  } else {
    Experts(p + "ffn_gate_exps.weight", kExperts, kExpertFfn, kHidden);
    Experts(p + "ffn_up_exps.weight", kExperts, kExpertFfn, kHidden);
  }
  return Experts(p + "ffn_down_exps.weight", kExperts, kHidden, kExpertFfn);
}

RandomFile& RandomFile::MoeKeys() {
  U32("expert_count", kExperts).U32("expert_used_count", kUsed);
  return U32("expert_feed_forward_length", kExpertFfn);
}

std::vector<float> RandomFile::Normal(size_t count, float mean, float deviation) {
  std::normal_distribution<float> normal(mean, deviation);
  std::vector<float> values(count);
  for (float& v : values) v = normal(random_);
  return values;
}

std::string LayerPrefix(int layer) { return "blk." + std::to_string(layer) + "."; }

RandomFile RandomFamily(std::string_view name) {
  if (name == "lfm2moe") return Lfm2Moe();
  if (name == "qwen35moe") return Qwen35Moe();
  if (name == "qwen2") return Decoder("qwen2", true, false, false, false);
  if (name == "qwen3") return Decoder("qwen3", false, true, false, false);
  if (name == "smollm3") return Decoder("smollm3", false, false, false, false);
  if (name == "mistral3") return Decoder("mistral3", false, false, false, false);
  if (name == "mixtral") return Decoder("llama", false, false, true, false);
  if (name == "qwen2moe") return Decoder("qwen2moe", true, false, true, true);
  if (name == "qwen3moe") return Decoder("qwen3moe", false, true, true, false);
  CHECK(name == "llama");
  return Decoder("llama", false, false, false, false);
}

}  // namespace cairn::testing
