// Falcon-H1: attention beside Mamba2. The multipliers are keys; GGUF's converter folds them into
// the weights, MLX's most of them.
#include "model/hf/adapters.h"

namespace cairn {
namespace {

Status SetFactors(HfBuilder& b, const char* key, size_t count) {
  const JsonValue* list = b.Find(key);
  if (list == nullptr) return {};
  std::vector<float> values;
  for (const JsonValue& value : list->elements())
    values.push_back(static_cast<float>(value.AsNumber().value_or(0)));
  if (values.size() != count)
    return DataLoss("[hf] config.json: got " + std::to_string(values.size()) + " " + key +
                    ", wanted " + std::to_string(count));
  b.SetFloats(key, values);
  return {};
}

Status SetMultipliers(HfBuilder& b) {
  for (const char* key :
       {"embedding_multiplier", "lm_head_multiplier", "key_multiplier", "attention_in_multiplier",
        "attention_out_multiplier", "ssm_in_multiplier", "ssm_out_multiplier"}) {
    ASSIGN_OR_RETURN(const double value, b.NumberOr(key, 1));
    b.SetFloat(key, value);
  }
  RETURN_IF_ERROR(SetFactors(b, "ssm_multipliers", 5));
  return SetFactors(b, "mlp_multipliers", 2);
}

// MLX's converter folds all multipliers into the weights but two: key_multiplier, and
// attention_in_multiplier where it meets the values (mlx-lm 0.32.2, FalconH1 sanitize).
Status SetMultipliersLeftByMlx(HfBuilder& b) {
  ASSIGN_OR_RETURN(const double key, b.NumberOr("key_multiplier", 1));
  ASSIGN_OR_RETURN(const double value, b.NumberOr("attention_in_multiplier", 1));
  b.SetFloat("key_multiplier", key);
  b.SetFloat("value_multiplier", value);
  return {};
}

}  // namespace

Status BuildFalconH1(HfBuilder& b) {
  RETURN_IF_ERROR(b.Demand("hidden_act", "silu"));
  RETURN_IF_ERROR(SetDecoderKeys(b));
  ASSIGN_OR_RETURN(const int64_t ffn, b.Integer("intermediate_size"));
  b.Set("feed_forward_length", ffn);
  ASSIGN_OR_RETURN(const int64_t head_dim, SetHeadKeys(b, {}));
  RETURN_IF_ERROR(SetRopeKeys(b, head_dim));
  Mamba2Sizes s;
  ASSIGN_OR_RETURN(s.heads, b.Integer("mamba_n_heads"));
  ASSIGN_OR_RETURN(s.head_dim, b.Integer("mamba_d_head"));
  ASSIGN_OR_RETURN(s.state, b.Integer("mamba_d_state"));
  ASSIGN_OR_RETURN(s.groups, b.IntegerOr("mamba_n_groups", 1));
  ASSIGN_OR_RETURN(s.conv, b.IntegerOr("mamba_d_conv", 4));
  RETURN_IF_ERROR(SetMamba2Keys(b, s));
  ASSIGN_OR_RETURN(const bool norm_first, b.BoolOr("mamba_norm_before_gate", false));
  b.SetBool("ssm.norm_before_gate", norm_first);
  RETURN_IF_ERROR(b.SetRoot({"model."}, "embed_tokens.weight"));
  RETURN_IF_ERROR(b.IsMlxLayout("layers.0.mamba.conv1d.weight") ? SetMultipliersLeftByMlx(b)
                                                                : SetMultipliers(b));
  RETURN_IF_ERROR(MapFrame(b, "final_layernorm.weight", HfValue::kAsIs));
  ASSIGN_OR_RETURN(const int64_t layers, b.Integer("num_hidden_layers"));
  for (int64_t i = 0; i < layers; ++i) {
    const std::string to = BlockName(i), from = LayerName(i), attention = from + "self_attn.";
    RETURN_IF_ERROR(b.Map(to + "attn_norm.weight", from + "input_layernorm.weight"));
    RETURN_IF_ERROR(b.MapLinear(to + "attn_q", attention + "q_proj"));
    RETURN_IF_ERROR(b.MapLinear(to + "attn_k", attention + "k_proj"));
    RETURN_IF_ERROR(b.MapLinear(to + "attn_v", attention + "v_proj"));
    RETURN_IF_ERROR(b.MapLinear(to + "attn_output", attention + "o_proj"));
    RETURN_IF_ERROR(MapMamba2(b, to, from + "mamba.", s.groups));
    RETURN_IF_ERROR(b.Map(to + "ffn_norm.weight", from + "pre_ff_layernorm.weight"));
    RETURN_IF_ERROR(MapSwiGlu(b, to, from + "feed_forward."));
  }
  return {};
}

}  // namespace cairn
