// Qwen3.5 dense and with experts (GGUF "qwen35", "qwen35moe"), Qwen3-Next. Value heads keep the
// order of the checkpoint, grouped by key head, where GGUF tiles them: with groups of quantised
// columns wider than a head, the columns of out_proj could not be moved.
#include <algorithm>

#include "base/bytes.h"
#include "model/hf/adapters.h"

namespace cairn {
namespace {

constexpr int64_t kSizeMax = 65536;  // so that no product of sizes overflows

// What the text_config of a model that also sees leaves out: Transformers writes only what differs
// from these (Qwen3_5TextConfig, Qwen3_5MoeTextConfig).
constexpr char kDenseDefaults[] =
    R"({"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 32,
        "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 256,
        "max_position_embeddings": 32768, "partial_rotary_factor": 0.25,
        "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
        "linear_num_key_heads": 16, "linear_num_value_heads": 32})";
constexpr char kExpertDefaults[] =
    R"({"hidden_size": 2048, "num_hidden_layers": 40, "num_attention_heads": 16,
        "num_key_value_heads": 2, "head_dim": 256, "max_position_embeddings": 32768,
        "partial_rotary_factor": 0.25, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
        "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512})";
// What every model's code assumes.
constexpr char kDefaults[] = R"({"partial_rotary_factor": 0.25, "head_dim": 256})";

// Sets which layers have attention: those of layer_types, else every full_attention_interval-th.
Result<std::vector<bool>> SetAttentionLayers(HfBuilder& b, int64_t layers) {
  ASSIGN_OR_RETURN(const auto types, ReadLayerTypes(b, layers));
  ASSIGN_OR_RETURN(int64_t interval, b.IntegerOr("full_attention_interval", 4));
  if (interval < 1) {
    return DataLoss("[hf] config.json: got " + std::to_string(interval) +
                    " as full_attention_interval, wanted at least 1");
  }
  std::vector<bool> attention;
  for (int64_t i = 0; i < layers; ++i) {
    const std::string type = types.empty() ? "" : types[static_cast<size_t>(i)];
    if (!type.empty() && type != "full_attention" && type != "linear_attention") {
      return Unsupported("[hf] config.json: got layer type " + QuoteForMessage(type) +
                         ", wanted full_attention or linear_attention");
    }
    attention.push_back(type.empty() ? (i + 1) % interval == 0 : type == "full_attention");
  }
  if (!types.empty()) interval = IntervalOf(attention);
  if (interval > 0) {
    b.Set("full_attention_interval", interval);
  } else {
    std::vector<int64_t> recurrent;
    for (const bool is_attention : attention) recurrent.push_back(is_attention ? 0 : 1);
    b.SetIntegers("attention.recurrent_layers", recurrent);
  }
  return attention;
}

struct DeltaSizes {
  int64_t key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;
};

Result<DeltaSizes> ReadDeltaSizes(const HfBuilder& b) {
  DeltaSizes s;
  for (const auto& [key, size] : {std::pair("linear_num_key_heads", &s.key_heads),
                                  {"linear_num_value_heads", &s.value_heads},
                                  {"linear_key_head_dim", &s.key_dim},
                                  {"linear_value_head_dim", &s.value_dim}}) {
    ASSIGN_OR_RETURN(*size, b.Integer(key));
    if (*size < 1 || *size > kSizeMax) {
      return DataLoss("[hf] config.json: got " + std::to_string(*size) + " as " + key +
                      ", wanted 1 to " + std::to_string(kSizeMax));
    }
  }
  if (s.value_heads % s.key_heads != 0)
    return DataLoss("[hf] config.json: value heads are no multiple of the key heads");
  return s;
}

// Qwen3-Next: rows of in_proj_qkvz lie by key head: q, k, then v and z of its value heads. GGUF has
// all q, all k, all v, and z apart.
Status MapFusedDelta(HfBuilder& b, const std::string& to, const std::string& from) {
  ASSIGN_OR_RETURN(const DeltaSizes sizes, ReadDeltaSizes(b));
  const int64_t key_heads = sizes.key_heads, key_dim = sizes.key_dim;
  ASSIGN_OR_RETURN(const HfSource* source, b.Source(from + "in_proj_qkvz.weight"));
  const int64_t values = sizes.value_heads / key_heads * sizes.value_dim;
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
  RETURN_IF_ERROR(
      ExpectBiases(b, "attention_bias", false, from, {"q_proj", "k_proj", "v_proj", "o_proj"}));
  RETURN_IF_ERROR(b.Map(to + "attn_q_norm.weight", from + "q_norm.weight", norm));
  return b.Map(to + "attn_k_norm.weight", from + "k_norm.weight", norm);
}

// Returns which layers have attention.
Result<std::vector<bool>> SetKeys(HfBuilder& b, int64_t layers) {
  RETURN_IF_ERROR(b.Demand("hidden_act", "silu"));
  RETURN_IF_ERROR(b.Demand("attn_output_gate", true));
  RETURN_IF_ERROR(SetDecoderKeys(b));
  ASSIGN_OR_RETURN(const int64_t head_dim, SetHeadKeys(b, {}));
  RETURN_IF_ERROR(SetRopeKeys(b, head_dim));
  ASSIGN_OR_RETURN(std::vector<bool> attention, SetAttentionLayers(b, layers));
  ASSIGN_OR_RETURN(const DeltaSizes sizes, ReadDeltaSizes(b));
  ASSIGN_OR_RETURN(const int64_t conv, b.Integer("linear_conv_kernel_dim"));
  b.Set("ssm.group_count", sizes.key_heads);
  b.Set("ssm.time_step_rank", sizes.value_heads);
  b.Set("ssm.state_size", sizes.key_dim);
  b.Set("ssm.inner_size", sizes.value_heads * sizes.value_dim);
  b.Set("ssm.conv_kernel", conv);
  return attention;
}

}  // namespace

Status BuildQwen35(HfBuilder& b) {
  const bool experts = b.architecture() != "qwen35";
  b.SetDefaults(!b.is_wrapped() ? kDefaults : experts ? kExpertDefaults : kDenseDefaults);
  ASSIGN_OR_RETURN(const int64_t layers, b.Integer("num_hidden_layers"));
  ASSIGN_OR_RETURN(const std::vector<bool> attention, SetKeys(b, layers));
  b.SetBool("ssm.value_heads_grouped", true);
  if (experts) {
    RETURN_IF_ERROR(SetExpertKeys(b));
  } else {
    ASSIGN_OR_RETURN(const int64_t ffn, b.Integer("intermediate_size"));
    b.Set("feed_forward_length", ffn);
  }
  RETURN_IF_ERROR(b.SetRoot({"model.language_model.", "language_model.model.", "model."},
                            "embed_tokens.weight"));
  // MLX adds the 1 when it converts, and turns the convolutions around.
  const auto first = std::find(attention.begin(), attention.end(), false) - attention.begin();
  const bool mlx = b.IsMlxLayout(LayerName(first) + "linear_attn.conv1d.weight");
  const HfValue norm = mlx ? HfValue::kAsIs : HfValue::kAddOne;
  RETURN_IF_ERROR(MapFrame(b, "norm.weight", norm));
  for (int64_t i = 0; i < layers; ++i) {
    const std::string to = BlockName(i), from = LayerName(i);
    RETURN_IF_ERROR(b.Map(to + "attn_norm.weight", from + "input_layernorm.weight", norm));
    RETURN_IF_ERROR(
        b.Map(to + "post_attention_norm.weight", from + "post_attention_layernorm.weight", norm));
    RETURN_IF_ERROR(attention[static_cast<size_t>(i)]
                        ? MapAttention(b, to, from + "self_attn.", norm)
                        : MapDelta(b, to, from + "linear_attn."));
    RETURN_IF_ERROR(experts ? MapExpertFfn(b, to, from + "mlp.") : MapSwiGlu(b, to, from + "mlp."));
  }
  return {};
}

}  // namespace cairn
