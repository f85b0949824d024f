// Qwen3.5 dense and with experts (GGUF "qwen35", "qwen35moe"), Qwen3-Next. Value heads keep the
// order of the checkpoint, grouped by key head, where GGUF tiles them: with groups of quantised
// columns wider than a head, the columns of out_proj could not be moved.
#include "model/hf/adapters.h"

namespace cairn {
namespace {

// Whether layer i has attention; from layer_types, else every n-th.
Result<int64_t> AttentionInterval(const HfBuilder& b, int64_t layers) {
  ASSIGN_OR_RETURN(const auto types, b.Strings("layer_types"));
  int64_t first = layers;
  for (size_t i = 0; i < types.size(); ++i) {
    if (types[i] == "full_attention") {
      first = static_cast<int64_t>(i);
      break;
    }
  }
  ASSIGN_OR_RETURN(const int64_t interval,
                   b.IntegerOr("full_attention_interval", types.empty() ? 4 : first + 1));
  for (size_t i = 0; i < types.size(); ++i) {
    const bool attention = (static_cast<int64_t>(i) + 1) % interval == 0;
    if (types[i] != (attention ? "full_attention" : "linear_attention")) {
      return Unsupported("[hf] config.json: layer_types do not have full attention in every " +
                         std::to_string(interval) + "th layer");
    }
  }
  return interval;
}

// Qwen3-Next: rows of in_proj_qkvz lie by key head: q, k, then v and z of its value heads. GGUF has
// all q, all k, all v, and z apart.
Status MapFusedDelta(HfBuilder& b, const std::string& to, const std::string& from) {
  ASSIGN_OR_RETURN(const int64_t key_heads, b.Integer("linear_num_key_heads"));
  ASSIGN_OR_RETURN(const int64_t value_heads, b.Integer("linear_num_value_heads"));
  ASSIGN_OR_RETURN(const int64_t key_dim, b.Integer("linear_key_head_dim"));
  ASSIGN_OR_RETURN(const int64_t value_dim, b.Integer("linear_value_head_dim"));
  if (key_heads < 1 || value_heads % key_heads != 0)
    return DataLoss("[hf] config.json: value heads are no multiple of the key heads");
  ASSIGN_OR_RETURN(const HfSource* source, b.Source(from + "in_proj_qkvz.weight"));
  const int64_t values = value_heads / key_heads * value_dim;
  const int64_t stride = 2 * key_dim + 2 * values;
  std::vector<HfRun> qkv, z;
  for (const auto& [begin, count] :
       {std::pair{int64_t{0}, key_dim}, {key_dim, key_dim}, {2 * key_dim, values}}) {
    for (int64_t h = 0; h < key_heads; ++h) qkv.push_back({source, h * stride + begin, count});
  }
  for (int64_t h = 0; h < key_heads; ++h)
    z.push_back({source, h * stride + 2 * key_dim + values, values});
  RETURN_IF_ERROR(b.MapRuns(to + "attn_qkv.weight", std::move(qkv)));
  RETURN_IF_ERROR(b.MapRuns(to + "attn_gate.weight", std::move(z)));
  return b.MapLinear(to + "ssm_ba", from + "in_proj_ba");
}

Status MapSplitDelta(HfBuilder& b, const std::string& to, const std::string& from) {
  RETURN_IF_ERROR(b.MapLinear(to + "attn_qkv", from + "in_proj_qkv"));
  RETURN_IF_ERROR(b.MapLinear(to + "attn_gate", from + "in_proj_z"));
  RETURN_IF_ERROR(b.MapLinear(to + "ssm_beta", from + "in_proj_b"));
  return b.MapLinear(to + "ssm_alpha", from + "in_proj_a");
}

Status MapDelta(HfBuilder& b, const std::string& to, const std::string& from) {
  RETURN_IF_ERROR(b.architecture() == "qwen3next" ? MapFusedDelta(b, to, from)
                                                  : MapSplitDelta(b, to, from));
  RETURN_IF_ERROR(b.MapLinear(to + "ssm_out", from + "out_proj"));
  RETURN_IF_ERROR(b.Map(to + "ssm_conv1d.weight", from + "conv1d.weight"));
  RETURN_IF_ERROR(b.Map(to + "ssm_a", from + "A_log", HfValue::kNegExp));
  RETURN_IF_ERROR(b.Map(to + "ssm_dt.bias", from + "dt_bias"));
  return b.Map(to + "ssm_norm.weight", from + "norm.weight");  // computed as is: no 1 added
}

Status MapAttention(HfBuilder& b, const std::string& to, const std::string& from, HfValue norm) {
  RETURN_IF_ERROR(b.MapLinear(to + "attn_q", from + "q_proj"));
  RETURN_IF_ERROR(b.MapLinear(to + "attn_k", from + "k_proj"));
  RETURN_IF_ERROR(b.MapLinear(to + "attn_v", from + "v_proj"));
  RETURN_IF_ERROR(b.MapLinear(to + "attn_output", from + "o_proj"));
  RETURN_IF_ERROR(b.Map(to + "attn_q_norm.weight", from + "q_norm.weight", norm));
  return b.Map(to + "attn_k_norm.weight", from + "k_norm.weight", norm);
}

}  // namespace

Result<int64_t> SetGatedDeltaKeys(HfBuilder& b) {
  RETURN_IF_ERROR(b.Demand("hidden_act", "silu"));
  RETURN_IF_ERROR(b.Demand("attn_output_gate", true));
  RETURN_IF_ERROR(SetDecoderKeys(b));
  ASSIGN_OR_RETURN(const int64_t head_dim, SetHeadKeys(b, {}));
  RETURN_IF_ERROR(SetRopeKeys(b, head_dim));
  ASSIGN_OR_RETURN(const int64_t layers, b.Integer("num_hidden_layers"));
  ASSIGN_OR_RETURN(const int64_t interval, AttentionInterval(b, layers));
  b.Set("full_attention_interval", interval);
  ASSIGN_OR_RETURN(const int64_t key_heads, b.Integer("linear_num_key_heads"));
  ASSIGN_OR_RETURN(const int64_t value_heads, b.Integer("linear_num_value_heads"));
  ASSIGN_OR_RETURN(const int64_t key_dim, b.Integer("linear_key_head_dim"));
  ASSIGN_OR_RETURN(const int64_t value_dim, b.Integer("linear_value_head_dim"));
  ASSIGN_OR_RETURN(const int64_t conv, b.Integer("linear_conv_kernel_dim"));
  b.Set("ssm.group_count", key_heads);
  b.Set("ssm.time_step_rank", value_heads);
  b.Set("ssm.state_size", key_dim);
  b.Set("ssm.inner_size", value_heads * value_dim);
  b.Set("ssm.conv_kernel", conv);
  return interval;
}

Status BuildQwen35(HfBuilder& b) {
  ASSIGN_OR_RETURN(const int64_t interval, SetGatedDeltaKeys(b));
  b.SetBool("ssm.value_heads_grouped", true);
  const bool experts = b.architecture() != "qwen35";
  if (experts) {
    RETURN_IF_ERROR(SetExpertKeys(b));
  } else {
    ASSIGN_OR_RETURN(const int64_t ffn, b.Integer("intermediate_size"));
    b.Set("feed_forward_length", ffn);
  }
  RETURN_IF_ERROR(b.SetRoot({"model.language_model.", "language_model.model.", "model."},
                            "embed_tokens.weight"));
  // MLX adds the 1 when it converts, and turns the convolutions around.
  const bool mlx = b.IsMlxLayout("layers.0.linear_attn.conv1d.weight");
  const HfValue norm = mlx ? HfValue::kAsIs : HfValue::kAddOne;
  RETURN_IF_ERROR(MapFrame(b, "norm.weight", norm));
  ASSIGN_OR_RETURN(const int64_t layers, b.Integer("num_hidden_layers"));
  for (int64_t i = 0; i < layers; ++i) {
    const std::string to = BlockName(i), from = LayerName(i);
    RETURN_IF_ERROR(b.Map(to + "attn_norm.weight", from + "input_layernorm.weight", norm));
    RETURN_IF_ERROR(
        b.Map(to + "post_attention_norm.weight", from + "post_attention_layernorm.weight", norm));
    RETURN_IF_ERROR((i + 1) % interval == 0 ? MapAttention(b, to, from + "self_attn.", norm)
                                            : MapDelta(b, to, from + "linear_attn."));
    RETURN_IF_ERROR(experts ? MapExpertFfn(b, to, from + "mlp.") : MapSwiGlu(b, to, from + "mlp."));
  }
  return {};
}

}  // namespace cairn
