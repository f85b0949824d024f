// Qwen2 and Qwen3, dense and with experts.
#include "model/hf/adapters.h"

namespace cairn {
namespace {

// What the models' code assumes: Qwen3Config, Qwen2MoeConfig and Qwen3MoeConfig of Transformers.
std::string_view Defaults(std::string_view architecture) {
  if (architecture == "qwen3") return R"({"head_dim": 128})";
  if (architecture == "qwen2moe")
    return R"({"norm_topk_prob": false, "shared_expert_intermediate_size": 5632})";
  return architecture == "qwen3moe" ? R"({"norm_topk_prob": false})" : "{}";
}

// Transformers 5 writes num_experts as num_local_experts.
Result<int64_t> ReadExpertCount(const HfBuilder& b) {
  return b.Find("num_experts") == nullptr && b.Find("num_local_experts") != nullptr
             ? b.Integer("num_local_experts")
             : b.Integer("num_experts");
}

Status SetKeys(HfBuilder& b) {
  RETURN_IF_ERROR(b.Demand("hidden_act", "silu"));
  RETURN_IF_ERROR(b.Demand("use_sliding_window", false));
  RETURN_IF_ERROR(SetDecoderKeys(b));
  ASSIGN_OR_RETURN(const int64_t ffn, b.Integer("intermediate_size"));
  b.Set("feed_forward_length", ffn);
  ASSIGN_OR_RETURN(const int64_t head_dim, SetHeadKeys(b, {}));
  return SetRopeKeys(b, head_dim);
}

}  // namespace

Status SetExpertKeys(HfBuilder& b) {
  for (const char* key : {"mlp_only_layers"}) {
    const JsonValue* value = b.Find(key);
    if (value != nullptr && !value->elements().empty())
      return Unsupported("[hf] config.json: mlp_only_layers are not in this version");
  }
  ASSIGN_OR_RETURN(const int64_t step, b.IntegerOr("decoder_sparse_step", 1));
  if (step != 1) return Unsupported("[hf] config.json: decoder_sparse_step is not in this version");
  ASSIGN_OR_RETURN(const int64_t experts, ReadExpertCount(b));
  ASSIGN_OR_RETURN(const int64_t used, b.Integer("num_experts_per_tok"));
  ASSIGN_OR_RETURN(const int64_t ffn, b.Integer("moe_intermediate_size"));
  ASSIGN_OR_RETURN(const int64_t shared, b.IntegerOr("shared_expert_intermediate_size", 0));
  ASSIGN_OR_RETURN(const bool norm, b.BoolOr("norm_topk_prob", true));
  b.Set("expert_count", experts);
  b.Set("expert_used_count", used);
  b.Set("expert_feed_forward_length", ffn);
  if (shared > 0) b.Set("expert_shared_feed_forward_length", shared);
  b.SetBool("expert_weights_norm", norm);
  return {};
}

Status MapExpertFfn(HfBuilder& b, const std::string& to, const std::string& from) {
  ASSIGN_OR_RETURN(const int64_t experts, ReadExpertCount(b));
  ASSIGN_OR_RETURN(const int64_t ffn, b.Integer("moe_intermediate_size"));
  RETURN_IF_ERROR(b.Map(to + "ffn_gate_inp.weight", from + "gate.weight"));
  RETURN_IF_ERROR(MapExperts(b, to, from, {}, experts, ffn));
  ASSIGN_OR_RETURN(const int64_t shared, b.IntegerOr("shared_expert_intermediate_size", 0));
  if (shared == 0) return {};
  RETURN_IF_ERROR(b.Map(to + "ffn_gate_inp_shexp.weight", from + "shared_expert_gate.weight"));
  RETURN_IF_ERROR(b.MapLinear(to + "ffn_gate_shexp", from + "shared_expert.gate_proj"));
  RETURN_IF_ERROR(b.MapLinear(to + "ffn_up_shexp", from + "shared_expert.up_proj"));
  return b.MapLinear(to + "ffn_down_shexp", from + "shared_expert.down_proj");
}

Status BuildQwen(HfBuilder& b) {
  b.SetDefaults(Defaults(b.architecture()));
  RETURN_IF_ERROR(SetKeys(b));
  const bool experts = b.architecture().ends_with("moe");
  if (experts) RETURN_IF_ERROR(SetExpertKeys(b));
  RETURN_IF_ERROR(b.SetRoot({"model.", "language_model.model.", "model.language_model."},
                            "embed_tokens.weight"));
  RETURN_IF_ERROR(MapFrame(b, "norm.weight", HfValue::kAsIs));
  ASSIGN_OR_RETURN(const int64_t layers, b.Integer("num_hidden_layers"));
  for (int64_t i = 0; i < layers; ++i) {
    const std::string to = BlockName(i), from = LayerName(i), attention = from + "self_attn.";
    RETURN_IF_ERROR(b.Map(to + "attn_norm.weight", from + "input_layernorm.weight"));
    RETURN_IF_ERROR(b.MapLinear(to + "attn_q", attention + "q_proj"));
    RETURN_IF_ERROR(b.MapLinear(to + "attn_k", attention + "k_proj"));
    RETURN_IF_ERROR(b.MapLinear(to + "attn_v", attention + "v_proj"));
    RETURN_IF_ERROR(b.MapLinear(to + "attn_output", attention + "o_proj"));
    RETURN_IF_ERROR(
        b.architecture().starts_with("qwen2")
            ? ExpectBiases(b, "qkv_bias", true, attention, {"q_proj", "k_proj", "v_proj"})
            : ExpectBiases(b, "attention_bias", false, attention,
                           {"q_proj", "k_proj", "v_proj", "o_proj"}));
    if (b.architecture().starts_with("qwen3")) {
      RETURN_IF_ERROR(b.Map(to + "attn_q_norm.weight", attention + "q_norm.weight"));
      RETURN_IF_ERROR(b.Map(to + "attn_k_norm.weight", attention + "k_norm.weight"));
    }
    RETURN_IF_ERROR(b.Map(to + "ffn_norm.weight", from + "post_attention_layernorm.weight"));
    RETURN_IF_ERROR(experts ? MapExpertFfn(b, to, from + "mlp.") : MapSwiGlu(b, to, from + "mlp."));
  }
  return {};
}

}  // namespace cairn
