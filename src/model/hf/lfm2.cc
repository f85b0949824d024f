// LFM2 and LFM2-MoE: short convolutions and attention.
#include "base/bytes.h"
#include "model/hf/adapters.h"

namespace cairn {
namespace {

constexpr ExpertNames kExpertNames = {
    .gate = "w1", .up = "w3", .down = "w2", .fused = "", .fused_down = ""};

// KV heads of each layer; 0: a convolution.
Result<std::vector<int64_t>> KvHeads(const HfBuilder& b, int64_t layers) {
  ASSIGN_OR_RETURN(const int64_t kv_heads, b.Integer("num_key_value_heads"));
  ASSIGN_OR_RETURN(const auto types, ReadLayerTypes(b, layers));
  const JsonValue* indices = b.Find("full_attn_idxs");
  // With neither, the models' code has attention everywhere.
  std::vector<int64_t> out(layers, types.empty() && indices == nullptr ? kv_heads : 0);
  for (size_t i = 0; i < types.size(); ++i) {
    if (types[i] != "full_attention" && types[i] != "conv") {
      return Unsupported("[hf] config.json: got layer type " + QuoteForMessage(types[i]) +
                         ", wanted full_attention or conv");
    }
    if (types[i] == "full_attention") out[i] = kv_heads;
  }
  if (!types.empty() || indices == nullptr) return out;
  for (const JsonValue& index : indices->elements()) {
    const int64_t i = index.AsInteger().value_or(-1);
    if (i < 0 || i >= layers) {
      return DataLoss("[hf] config.json: got " + index.Describe() +
                      " in full_attn_idxs, wanted 0 to " + std::to_string(layers - 1));
    }
    out[i] = kv_heads;
  }
  return out;
}

// Lfm2Config and Lfm2MoeConfig of Transformers; of a text_config inside another model's, all.
constexpr char kDefaults[] =
    R"({"norm_eps": 1e-05, "rope_theta": 1000000.0, "conv_L_cache": 3, "num_dense_layers": 2,
        "max_position_embeddings": 128000})";
constexpr char kWrappedDefaults[] =
    R"({"norm_eps": 1e-05, "rope_theta": 1000000.0, "conv_L_cache": 3, "hidden_size": 2560,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "max_position_embeddings": 128000})";

// Sets tie_word_embeddings' default: the older tie_embedding, else true.
Result<std::string> Defaults(const HfBuilder& b) {
  std::string defaults =
      b.is_wrapped() && b.architecture() == "lfm2" ? kWrappedDefaults : kDefaults;
  ASSIGN_OR_RETURN(const bool tied, b.BoolOr("tie_embedding", true));
  defaults.back() = ',';
  return defaults + "\"tie_word_embeddings\": " + (tied ? "true}" : "false}");
}

Status SetExperts(HfBuilder& b) {
  ASSIGN_OR_RETURN(const int64_t experts, b.Integer("num_experts"));
  ASSIGN_OR_RETURN(const int64_t used, b.Integer("num_experts_per_tok"));
  ASSIGN_OR_RETURN(const int64_t ffn, b.Integer("moe_intermediate_size"));
  ASSIGN_OR_RETURN(const int64_t dense, b.Integer("num_dense_layers"));
  ASSIGN_OR_RETURN(const bool norm, b.BoolOr("norm_topk_prob", true));
  ASSIGN_OR_RETURN(const double scale, b.NumberOr("routed_scaling_factor", 1));
  b.Set("expert_count", experts);
  b.Set("expert_used_count", used);
  b.Set("expert_feed_forward_length", ffn);
  b.Set("leading_dense_block_count", dense);
  b.SetBool("expert_weights_norm", norm);
  b.SetFloat("expert_weights_scale", scale);
  return {};
}

Status MapFfn(HfBuilder& b, const std::string& to, const std::string& from) {
  if (b.Has(from + "w1.weight")) {
    RETURN_IF_ERROR(b.MapLinear(to + "ffn_gate", from + "w1"));
    RETURN_IF_ERROR(b.MapLinear(to + "ffn_up", from + "w3"));
    return b.MapLinear(to + "ffn_down", from + "w2");
  }
  if (b.Has(from + "gate_proj.weight")) return MapSwiGlu(b, to, from);
  ASSIGN_OR_RETURN(const int64_t experts, b.Integer("num_experts"));
  ASSIGN_OR_RETURN(const int64_t ffn, b.Integer("moe_intermediate_size"));
  RETURN_IF_ERROR(b.Map(to + "ffn_gate_inp.weight", from + "gate.weight"));
  ASSIGN_OR_RETURN(const bool biased, b.BoolOr("use_expert_bias", true));
  if (biased) RETURN_IF_ERROR(b.Map(to + "exp_probs_b.bias", from + "expert_bias"));
  const bool plain_names = b.Has(from + "switch_mlp.gate_proj.weight");
  return MapExperts(b, to, from, plain_names ? ExpertNames{} : kExpertNames, experts, ffn);
}

Status MapMixer(HfBuilder& b, const std::string& to, const std::string& from, bool attention) {
  if (!attention) {
    RETURN_IF_ERROR(
        ExpectBiases(b, "conv_bias", false, from + "conv.", {"in_proj", "out_proj", "conv"}));
    RETURN_IF_ERROR(b.MapLinear(to + "shortconv.in_proj", from + "conv.in_proj"));
    RETURN_IF_ERROR(b.MapLinear(to + "shortconv.out_proj", from + "conv.out_proj"));
    return b.MapLinear(to + "shortconv.conv", from + "conv.conv");
  }
  const std::string a = from + "self_attn.";
  RETURN_IF_ERROR(b.MapLinear(to + "attn_q", a + "q_proj"));
  RETURN_IF_ERROR(b.MapLinear(to + "attn_k", a + "k_proj"));
  RETURN_IF_ERROR(b.MapLinear(to + "attn_v", a + "v_proj"));
  RETURN_IF_ERROR(b.MapLinear(to + "attn_output", a + "out_proj"));
  RETURN_IF_ERROR(b.Map(to + "attn_q_norm.weight", a + "q_layernorm.weight"));
  return b.Map(to + "attn_k_norm.weight", a + "k_layernorm.weight");
}

}  // namespace

Status BuildLfm2(HfBuilder& b) {
  ASSIGN_OR_RETURN(const std::string defaults, Defaults(b));
  b.SetDefaults(defaults);
  RETURN_IF_ERROR(SetDecoderKeys(b));
  ASSIGN_OR_RETURN(const int64_t layers, b.Integer("num_hidden_layers"));
  ASSIGN_OR_RETURN(const auto kv_heads, KvHeads(b, layers));
  ASSIGN_OR_RETURN(const int64_t head_dim, SetHeadKeys(b, kv_heads));
  RETURN_IF_ERROR(SetRopeKeys(b, head_dim));
  ASSIGN_OR_RETURN(const int64_t taps, b.Integer("conv_L_cache"));
  b.Set("shortconv.l_cache", taps);
  RETURN_IF_ERROR(b.SetRoot({"model.", "language_model.model.", "model.language_model."},
                            "embed_tokens.weight"));
  if (b.architecture() == "lfm2moe") {
    RETURN_IF_ERROR(SetExperts(b));
    ASSIGN_OR_RETURN(const int64_t ffn, b.Integer("intermediate_size"));
    b.Set("feed_forward_length", ffn);
  } else {
    // The width follows from four keys; the tensor has it.
    const char* first = b.Has("layers.0.feed_forward.w1.weight")
                            ? "layers.0.feed_forward.w1.weight"
                            : "layers.0.feed_forward.gate_proj.weight";
    ASSIGN_OR_RETURN(const HfSource* gate, b.Source(first));
    b.Set("feed_forward_length", gate->rows);
  }
  RETURN_IF_ERROR(MapFrame(b, "embedding_norm.weight", HfValue::kAsIs, "token_embd_norm.weight"));
  for (int64_t i = 0; i < layers; ++i) {
    const std::string to = BlockName(i), from = LayerName(i);
    RETURN_IF_ERROR(b.Map(to + "attn_norm.weight", from + "operator_norm.weight"));
    RETURN_IF_ERROR(b.Map(to + "ffn_norm.weight", from + "ffn_norm.weight"));
    RETURN_IF_ERROR(MapMixer(b, to, from, kv_heads[i] > 0));
    RETURN_IF_ERROR(MapFfn(b, to, from + "feed_forward."));
  }
  return {};
}

}  // namespace cairn
