// Falcon-H1: attention beside Mamba2. The multipliers are keys; GGUF's converter folds them into
// the weights, MLX's most of them.
#include "base/bytes.h"
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

// A factor on the input of a projection is applied to its output (falcon_h1.cc beside the other
// architectures), so that a bias would be scaled with it.
Status RefuseScaledBiases(const HfBuilder& b) {
  for (const auto& [factor, bias] : {std::pair("attention_in_multiplier", "attention_bias"),
                                     {"ssm_in_multiplier", "mamba_proj_bias"}}) {
    ASSIGN_OR_RETURN(const double value, b.NumberOr(factor, 1));
    if (value != 1) RETURN_IF_ERROR(b.Demand(bias, false));
  }
  return {};
}

// What is there or not by config.json, and would be left out in silence where it is missing.
Status ExpectMixer(const HfBuilder& b, const std::string& from) {
  RETURN_IF_ERROR(ExpectBiases(b, "mamba_conv_bias", true, from, {"conv1d"}));
  RETURN_IF_ERROR(ExpectBiases(b, "mamba_proj_bias", false, from, {"in_proj"}));
  RETURN_IF_ERROR(ExpectBiases(b, "projectors_bias", false, from, {"out_proj"}));
  ASSIGN_OR_RETURN(const bool norm, b.BoolOr("mamba_rms_norm", false));
  if (!norm || b.Has(from + "norm.weight")) return {};
  return NotFound("[hf] tensor " + QuoteForMessage(b.Absolute(from + "norm.weight")) +
                  ": got none, wanted it (mamba_rms_norm)");
}

}  // namespace

Status BuildFalconH1(HfBuilder& b) {
  b.SetDefaults(R"({"rms_norm_eps": 1e-05, "max_position_embeddings": 8192,
                    "mamba_norm_before_gate": true})");  // FalconH1Config of Transformers
  RETURN_IF_ERROR(b.Demand("hidden_act", "silu"));
  RETURN_IF_ERROR(RefuseScaledBiases(b));
  RETURN_IF_ERROR(SetDecoderKeys(b));
  ASSIGN_OR_RETURN(const int64_t ffn, b.Integer("intermediate_size"));
  b.Set("feed_forward_length", ffn);
  ASSIGN_OR_RETURN(const int64_t head_dim, SetHeadKeys(b, {}));
  RETURN_IF_ERROR(SetRopeKeys(b, head_dim));
  Mamba2Sizes s;
  ASSIGN_OR_RETURN(s.heads, b.Integer("mamba_n_heads"));
  ASSIGN_OR_RETURN(s.head_dim, ReadMamba2HeadDim(b, s.heads));
  ASSIGN_OR_RETURN(s.state, b.Integer("mamba_d_state"));
  ASSIGN_OR_RETURN(s.groups, b.IntegerOr("mamba_n_groups", 1));
  ASSIGN_OR_RETURN(s.conv, b.IntegerOr("mamba_d_conv", 4));
  RETURN_IF_ERROR(SetMamba2Keys(b, s));
  ASSIGN_OR_RETURN(const bool norm_first, b.BoolOr("mamba_norm_before_gate", true));
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
    RETURN_IF_ERROR(ExpectMixer(b, from + "mamba."));
    RETURN_IF_ERROR(ExpectBiases(b, "attention_bias", false, attention,
                                 {"q_proj", "k_proj", "v_proj", "o_proj"}));
    RETURN_IF_ERROR(MapMamba2(b, to, from + "mamba.", s.groups));
    RETURN_IF_ERROR(b.Map(to + "ffn_norm.weight", from + "pre_ff_layernorm.weight"));
    RETURN_IF_ERROR(ExpectBiases(b, "mlp_bias", false, from + "feed_forward.",
                                 {"gate_proj", "up_proj", "down_proj"}));
    RETURN_IF_ERROR(MapSwiGlu(b, to, from + "feed_forward."));
  }
  return {};
}

}  // namespace cairn
