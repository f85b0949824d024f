// Kimi Linear: Kimi Delta Attention, and latent attention in the layers that linear_attn_config
// names, counted from one.
#include <algorithm>

#include "model/hf/adapters.h"

namespace cairn {
namespace {

constexpr ExpertNames kExpertNames = {
    .gate = "w1", .up = "w3", .down = "w2", .fused = "", .fused_down = ""};

// A size of linear attention: in linear_attn_config as `key`, or beside it as `name`, where
// Transformers 5 writes it.
Result<int64_t> DeltaSize(const HfBuilder& b, const char* key, const char* name) {
  const JsonValue* linear = b.Find("linear_attn_config");
  const JsonValue* value = linear == nullptr ? nullptr : linear->Find(key);
  if (value == nullptr || value->is_null()) return b.Integer(name);
  if (!value->AsInteger()) {
    return DataLoss("[hf] config.json: got " + value->Describe() + " as " + std::string(key) +
                    " of linear_attn_config, wanted an integer");
  }
  return *value->AsInteger();
}

// Whether a layer has attention.
Result<std::vector<bool>> AttentionLayers(const HfBuilder& b, int64_t layers) {
  std::vector<bool> attention(static_cast<size_t>(layers), false);
  const JsonValue* linear = b.Find("linear_attn_config");
  const JsonValue* list = linear == nullptr ? nullptr : linear->Find("full_attn_layers");
  if (list == nullptr) {
    ASSIGN_OR_RETURN(const auto types, ReadLayerTypes(b, layers));
    if (types.empty()) {
      return DataLoss(
          "[hf] config.json: got neither full_attn_layers in linear_attn_config nor "
          "layer_types");
    }
    for (size_t i = 0; i < types.size(); ++i) attention[i] = types[i] == "full_attention";
    return attention;
  }
  for (const JsonValue& element : list->elements()) {
    const int64_t layer = element.AsInteger().value_or(0);
    if (layer < 1 || layer > layers) {
      return DataLoss("[hf] config.json: got " + element.Describe() +
                      " in full_attn_layers, wanted 1 to " + std::to_string(layers));
    }
    attention[static_cast<size_t>(layer - 1)] = true;
  }
  return attention;
}

struct Sizes {
  int64_t heads = 0, head_key = 0, head_value = 0;
};

Result<Sizes> SetLatentKeys(HfBuilder& b) {
  RETURN_IF_ERROR(b.Demand("mla_use_nope", true));
  if (b.Find("q_lora_rank") != nullptr)
    return Unsupported("[hf] config.json: queries of low rank are not in this version");
  Sizes s;
  ASSIGN_OR_RETURN(s.heads, b.Integer("num_attention_heads"));
  ASSIGN_OR_RETURN(s.head_key, b.Integer("qk_nope_head_dim"));
  ASSIGN_OR_RETURN(s.head_value, b.Integer("v_head_dim"));
  ASSIGN_OR_RETURN(const int64_t latent, b.Integer("kv_lora_rank"));
  ASSIGN_OR_RETURN(const int64_t shared, b.Integer("qk_rope_head_dim"));
  for (const int64_t size : {s.heads, s.head_key, s.head_value, latent, shared}) {
    if (size < 0 || size > 65536)
      return DataLoss("[hf] config.json: got sizes of attention heads that make no sense");
  }
  b.Set("attention.head_count", s.heads);
  b.Set("attention.kv_lora_rank", latent);
  b.Set("attention.key_length", latent + shared);
  b.Set("attention.value_length", latent);
  b.Set("attention.key_length_mla", s.head_key + shared);
  b.Set("attention.value_length_mla", s.head_value);
  b.Set("rope.dimension_count", shared);
  return s;
}

Status SetDeltaKeys(HfBuilder& b, int64_t heads) {
  ASSIGN_OR_RETURN(const int64_t delta_heads, DeltaSize(b, "num_heads", "linear_num_heads"));
  ASSIGN_OR_RETURN(const int64_t head_dim, DeltaSize(b, "head_dim", "linear_head_dim"));
  ASSIGN_OR_RETURN(const int64_t taps,
                   DeltaSize(b, "short_conv_kernel_size", "linear_conv_kernel_dim"));
  if (delta_heads != heads) {
    return Unsupported("[hf] config.json: got " + std::to_string(delta_heads) +
                       " heads of linear attention beside " + std::to_string(heads) +
                       " others, wanted as many");
  }
  b.Set("kda.head_dim", head_dim);
  b.Set("ssm.conv_kernel", taps);
  return {};
}

// first_k_dense_replace, or the "dense" of mlp_layer_types before the "sparse".
Result<int64_t> DenseLayers(const HfBuilder& b) {
  ASSIGN_OR_RETURN(const auto types, b.Strings("mlp_layer_types"));
  if (types.empty() || b.Find("first_k_dense_replace") != nullptr)
    return b.IntegerOr("first_k_dense_replace", 0);
  const auto sparse = std::find(types.begin(), types.end(), "sparse");
  if (std::find(sparse, types.end(), "dense") != types.end())
    return Unsupported("[hf] config.json: mlp_layer_types have dense layers behind sparse ones");
  return sparse - types.begin();
}

// Returns the number of dense layers before the first with experts.
Result<int64_t> SetExperts(HfBuilder& b, int64_t layers) {
  ASSIGN_OR_RETURN(const int64_t experts, b.IntegerOr("num_experts", 0));
  if (experts == 0) return layers;
  RETURN_IF_ERROR(b.Demand("moe_router_activation_func", "sigmoid"));
  ASSIGN_OR_RETURN(const int64_t frequency, b.IntegerOr("moe_layer_freq", 1));
  ASSIGN_OR_RETURN(const int64_t groups, b.IntegerOr("num_expert_group", 1));
  if (frequency != 1 || groups != 1)
    return Unsupported("[hf] config.json: got moe_layer_freq " + std::to_string(frequency) +
                       ", num_expert_group " + std::to_string(groups) + ", wanted 1, 1");
  ASSIGN_OR_RETURN(const int64_t used, b.Integer("num_experts_per_token"));
  ASSIGN_OR_RETURN(const int64_t ffn, b.Integer("moe_intermediate_size"));
  ASSIGN_OR_RETURN(const int64_t shared, b.IntegerOr("num_shared_experts", 0));
  ASSIGN_OR_RETURN(const int64_t dense, DenseLayers(b));
  ASSIGN_OR_RETURN(const bool norm, b.BoolOr("moe_renormalize", true));
  ASSIGN_OR_RETURN(const double scale, b.NumberOr("routed_scaling_factor", 1));
  b.Set("expert_count", experts);
  b.Set("expert_used_count", used);
  b.Set("expert_feed_forward_length", ffn);
  b.Set("expert_shared_count", shared);
  b.Set("leading_dense_block_count", dense);
  b.Set("expert_gating_func", 2);
  b.SetBool("expert_weights_norm", norm && used > 1);  // as the published model code
  b.SetFloat("expert_weights_scale", scale);
  return dense;
}

// `from`: block_sparse_moe, or mlp in an MLX directory, where the experts are stacked and the bias
// is not the router's.
Status MapExpertLayer(HfBuilder& b, const std::string& to, const std::string& from) {
  ASSIGN_OR_RETURN(const int64_t experts, b.Integer("num_experts"));
  ASSIGN_OR_RETURN(const int64_t ffn, b.Integer("moe_intermediate_size"));
  ASSIGN_OR_RETURN(const int64_t shared, b.IntegerOr("num_shared_experts", 0));
  RETURN_IF_ERROR(b.Map(to + "ffn_gate_inp.weight", from + "gate.weight"));
  const std::string bias = b.Has(from + "e_score_correction_bias")
                               ? from + "e_score_correction_bias"
                               : from + "gate.e_score_correction_bias";
  RETURN_IF_ERROR(b.Map(to + "exp_probs_b.bias", bias));
  const bool stacked = b.Has(from + "switch_mlp.gate_proj.weight");
  RETURN_IF_ERROR(MapExperts(b, to, from, stacked ? ExpertNames{} : kExpertNames, experts, ffn));
  if (shared == 0) return {};
  const std::string s = from + "shared_experts.";
  RETURN_IF_ERROR(b.MapLinear(to + "ffn_gate_shexp", s + "gate_proj"));
  RETURN_IF_ERROR(b.MapLinear(to + "ffn_up_shexp", s + "up_proj"));
  return b.MapLinear(to + "ffn_down_shexp", s + "down_proj");
}

// Of each head kv_b_proj has rows that make its keys, then rows that make its values.
Status MapAttention(HfBuilder& b, const std::string& to, const std::string& from, const Sizes& s) {
  RETURN_IF_ERROR(b.MapLinear(to + "attn_q", from + "q_proj"));
  RETURN_IF_ERROR(b.MapLinear(to + "attn_kv_a_mqa", from + "kv_a_proj_with_mqa"));
  RETURN_IF_ERROR(b.Map(to + "attn_kv_a_norm.weight", from + "kv_a_layernorm.weight"));
  RETURN_IF_ERROR(b.MapLinear(to + "attn_output", from + "o_proj"));
  if (b.Has(from + "embed_q.weight")) {  // MLX: apart, and turned as GGUF has them
    RETURN_IF_ERROR(b.Map(to + "attn_k_b.weight", from + "embed_q.weight"));
    return b.Map(to + "attn_v_b.weight", from + "unembed_out.weight");
  }
  const std::string kv_b = from + "kv_b_proj.weight";
  RETURN_IF_ERROR(
      b.MapHeadsTransposed(to + "attn_k_b.weight", kv_b, s.heads, /*begin=*/0, s.head_key));
  ASSIGN_OR_RETURN(const HfSource* source, b.Source(kv_b));
  const int64_t d = s.head_key + s.head_value;
  std::vector<HfRun> values;
  for (int64_t h = 0; h < s.heads; ++h)
    values.push_back({source, h * d + s.head_key, s.head_value});
  return b.MapRuns(to + "attn_v_b.weight", std::move(values), {s.heads, s.head_value, source->k});
}

Status MapDelta(HfBuilder& b, const std::string& to, const std::string& from) {
  for (const std::string part : {"q", "k", "v"}) {
    RETURN_IF_ERROR(b.MapLinear(to + "attn_" + part, from + part + "_proj"));
    const std::string conv = b.Has(from + part + "_conv.conv.weight")
                                 ? part + "_conv.conv.weight"  // MLX
                                 : part + "_conv1d.weight";
    RETURN_IF_ERROR(b.Map(to + "ssm_conv1d_" + part + ".weight", from + conv));
  }
  for (const std::string part : {"f_a", "f_b", "g_a", "g_b"})
    RETURN_IF_ERROR(b.MapLinear(to + "ssm_" + part, from + part + "_proj"));
  RETURN_IF_ERROR(b.MapLinear(to + "ssm_beta", from + "b_proj"));
  RETURN_IF_ERROR(b.MapLinear(to + "attn_output", from + "o_proj"));
  RETURN_IF_ERROR(b.Map(to + "ssm_a", from + "A_log", HfValue::kNegExp));
  RETURN_IF_ERROR(b.Map(to + "ssm_dt.bias", from + "dt_bias"));
  return b.Map(to + "ssm_norm.weight", from + "o_norm.weight");
}

}  // namespace

Status BuildKimiLinear(HfBuilder& b) {
  RETURN_IF_ERROR(b.Demand("hidden_act", "silu"));
  RETURN_IF_ERROR(SetDecoderKeys(b));
  ASSIGN_OR_RETURN(const int64_t layers, b.Integer("num_hidden_layers"));
  ASSIGN_OR_RETURN(const int64_t ffn, b.Integer("intermediate_size"));
  b.Set("feed_forward_length", ffn);
  ASSIGN_OR_RETURN(const std::vector<bool> attention, AttentionLayers(b, layers));
  b.SetIntegers("attention.head_count_kv", {attention.begin(), attention.end()});
  ASSIGN_OR_RETURN(const Sizes sizes, SetLatentKeys(b));
  RETURN_IF_ERROR(SetDeltaKeys(b, sizes.heads));
  ASSIGN_OR_RETURN(const int64_t dense, SetExperts(b, layers));
  RETURN_IF_ERROR(b.SetRoot({"model."}, "embed_tokens.weight"));
  RETURN_IF_ERROR(MapFrame(b, "norm.weight", HfValue::kAsIs));
  for (int64_t i = 0; i < layers; ++i) {
    const std::string to = BlockName(i), from = LayerName(i);
    RETURN_IF_ERROR(b.Map(to + "attn_norm.weight", from + "input_layernorm.weight"));
    RETURN_IF_ERROR(b.Map(to + "ffn_norm.weight", from + "post_attention_layernorm.weight"));
    RETURN_IF_ERROR(attention[static_cast<size_t>(i)]
                        ? MapAttention(b, to, from + "self_attn.", sizes)
                        : MapDelta(b, to, from + "self_attn."));
    const bool mlx = b.Has(from + "mlp.gate.weight");
    RETURN_IF_ERROR(i < dense ? MapSwiGlu(b, to, from + "mlp.")
                              : MapExpertLayer(b, to, from + (mlx ? "mlp." : "block_sparse_moe.")));
  }
  return {};
}

}  // namespace cairn
