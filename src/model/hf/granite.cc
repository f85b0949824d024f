// Granite-4.0-H, dense and with experts (GGUF "granitehybrid").
#include <algorithm>

#include "base/bytes.h"
#include "model/hf/adapters.h"

namespace cairn {
namespace {

constexpr ExpertNames kExpertNames = {.gate = "gate_proj",
                                      .up = "up_proj",
                                      .down = "down_proj",
                                      .fused = "input_linear.weight",
                                      .fused_down = "output_linear.weight"};

// The dense MLP, or the shared expert: gate rows, then up rows, in one tensor; MLX splits them.
Status MapSharedMlp(HfBuilder& b, const std::string& to, const std::string& from,
                    const std::string& suffix, int64_t width) {
  for (const char* name : {"shared_mlp.", "mlp."}) {
    const std::string base = from + name;
    if (b.Has(base + "input_linear.weight")) {
      RETURN_IF_ERROR(b.MapSlice(to + "ffn_gate" + suffix, base + "input_linear", 0, width));
      RETURN_IF_ERROR(b.MapSlice(to + "ffn_up" + suffix, base + "input_linear", width, width));
      return b.MapLinear(to + "ffn_down" + suffix, base + "output_linear");
    }
    if (b.Has(base + "gate_proj.weight")) {
      RETURN_IF_ERROR(b.MapLinear(to + "ffn_gate" + suffix, base + "gate_proj"));
      RETURN_IF_ERROR(b.MapLinear(to + "ffn_up" + suffix, base + "up_proj"));
      return b.MapLinear(to + "ffn_down" + suffix, base + "down_proj");
    }
  }
  return NotFound("[hf] tensor '" + from + "shared_mlp.input_linear.weight': got none");
}

// KV heads of each layer; 0: Mamba2.
Result<std::vector<int64_t>> KvHeads(const HfBuilder& b) {
  ASSIGN_OR_RETURN(const int64_t layers, b.Integer("num_hidden_layers"));
  ASSIGN_OR_RETURN(const int64_t heads, b.Integer("num_attention_heads"));
  ASSIGN_OR_RETURN(const int64_t kv_heads, b.IntegerOr("num_key_value_heads", heads));
  ASSIGN_OR_RETURN(const auto types, ReadLayerTypes(b, layers));
  if (types.empty()) return DataLoss("[hf] config.json: got no layer_types");
  std::vector<int64_t> out(static_cast<size_t>(layers), 0);
  for (size_t i = 0; i < types.size(); ++i) {
    if (types[i] != "full_attention" && types[i] != "linear_attention") {
      return Unsupported("[hf] config.json: got layer type " + QuoteForMessage(types[i]) +
                         ", wanted attention or mamba");
    }
    if (types[i] == "full_attention") out[i] = kv_heads;
  }
  return out;
}

Status SetMultipliers(HfBuilder& b) {
  const std::pair<const char*, const char*> keys[] = {{"embedding_scale", "embedding_multiplier"},
                                                      {"residual_scale", "residual_multiplier"},
                                                      {"attention.scale", "attention_multiplier"},
                                                      {"logit_scale", "logits_scaling"}};
  for (const auto& [to, from] : keys) {
    ASSIGN_OR_RETURN(const double value, b.NumberOr(from, 1));
    b.SetFloat(to, value);
  }
  return {};
}

Status SetFfnKeys(HfBuilder& b, int64_t experts, int64_t shared) {
  if (experts == 0) {
    b.Set("feed_forward_length", shared);
    return {};
  }
  ASSIGN_OR_RETURN(const int64_t ffn, b.Integer("intermediate_size"));
  ASSIGN_OR_RETURN(const int64_t used, b.Integer("num_experts_per_tok"));
  b.Set("feed_forward_length", ffn);
  b.Set("expert_count", experts);
  b.Set("expert_used_count", used);
  b.Set("expert_shared_feed_forward_length", shared);
  return {};
}

Status MapAttention(HfBuilder& b, const std::string& to, const std::string& from) {
  ASSIGN_OR_RETURN(const int64_t heads, b.Integer("num_attention_heads"));
  ASSIGN_OR_RETURN(const int64_t kv_heads, b.IntegerOr("num_key_value_heads", heads));
  RETURN_IF_ERROR(b.MapPairs(to + "attn_q", from + "q_proj", heads));
  RETURN_IF_ERROR(b.MapPairs(to + "attn_k", from + "k_proj", kv_heads));
  RETURN_IF_ERROR(b.MapLinear(to + "attn_v", from + "v_proj"));
  RETURN_IF_ERROR(
      ExpectBiases(b, "attention_bias", false, from, {"q_proj", "k_proj", "v_proj", "o_proj"}));
  return b.MapLinear(to + "attn_output", from + "o_proj");
}

// Granite 4.0 without H has attention in all layers, and may have no keys of mixers.
Result<Mamba2Sizes> ReadMixerSizes(const HfBuilder& b, bool has_mixers) {
  Mamba2Sizes s{.heads = 1, .head_dim = 1, .state = 1};
  if (!has_mixers) return s;
  ASSIGN_OR_RETURN(s.heads, b.Integer("mamba_n_heads"));
  ASSIGN_OR_RETURN(s.head_dim, ReadMamba2HeadDim(b, s.heads));
  ASSIGN_OR_RETURN(s.state, b.Integer("mamba_d_state"));
  ASSIGN_OR_RETURN(s.groups, b.IntegerOr("mamba_n_groups", 1));
  ASSIGN_OR_RETURN(s.conv, b.IntegerOr("mamba_d_conv", 4));
  return s;
}

Status MapMixer(HfBuilder& b, const std::string& to, const std::string& from, int64_t groups) {
  RETURN_IF_ERROR(ExpectBiases(b, "mamba_conv_bias", true, from, {"conv1d"}));
  RETURN_IF_ERROR(ExpectBiases(b, "mamba_proj_bias", false, from, {"in_proj", "out_proj"}));
  return MapMamba2(b, to, from, groups);
}

}  // namespace

Status BuildGraniteHybrid(HfBuilder& b) {
  RETURN_IF_ERROR(b.Demand("hidden_act", "silu"));
  RETURN_IF_ERROR(SetDecoderKeys(b));
  RETURN_IF_ERROR(SetMultipliers(b));
  ASSIGN_OR_RETURN(const int64_t layers, b.Integer("num_hidden_layers"));
  ASSIGN_OR_RETURN(const std::vector<int64_t> layer_kv_heads, KvHeads(b));
  ASSIGN_OR_RETURN(const int64_t head_dim, SetHeadKeys(b, layer_kv_heads));
  RETURN_IF_ERROR(SetRopeKeys(b, head_dim));
  ASSIGN_OR_RETURN(const std::string positions, b.StringOr("position_embedding_type", ""));
  b.SetBool("rope.scaling.finetuned", std::string_view(positions) == "rope");
  const bool is_mixed = std::ranges::count(layer_kv_heads, 0) > 0;
  ASSIGN_OR_RETURN(const Mamba2Sizes s, ReadMixerSizes(b, is_mixed));
  RETURN_IF_ERROR(SetMamba2Keys(b, s));
  ASSIGN_OR_RETURN(const int64_t experts, b.IntegerOr("num_local_experts", 0));
  ASSIGN_OR_RETURN(const int64_t shared, b.Integer("shared_intermediate_size"));
  RETURN_IF_ERROR(SetFfnKeys(b, experts, shared));
  RETURN_IF_ERROR(b.SetRoot({"model."}, "embed_tokens.weight"));
  RETURN_IF_ERROR(MapFrame(b, "norm.weight", HfValue::kAsIs));
  for (int64_t i = 0; i < layers; ++i) {
    const std::string to = BlockName(i), from = LayerName(i);
    RETURN_IF_ERROR(b.Map(to + "attn_norm.weight", from + "input_layernorm.weight"));
    RETURN_IF_ERROR(b.Map(to + "ffn_norm.weight", from + "post_attention_layernorm.weight"));
    RETURN_IF_ERROR(layer_kv_heads[i] > 0 ? MapAttention(b, to, from + "self_attn.")
                                          : MapMixer(b, to, from + "mamba.", s.groups));
    RETURN_IF_ERROR(MapSharedMlp(b, to, from, experts > 0 ? "_shexp" : "", shared));
    if (experts == 0) continue;
    const std::string moe = from + "block_sparse_moe.";
    ASSIGN_OR_RETURN(const int64_t ffn, b.Integer("intermediate_size"));
    RETURN_IF_ERROR(b.Map(to + "ffn_gate_inp.weight", moe + "router.layer.weight"));
    RETURN_IF_ERROR(MapExperts(b, to, moe, kExpertNames, experts, ffn));
  }
  return {};
}

}  // namespace cairn
