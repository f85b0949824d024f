// Gemma-3 text: windows in all but every n-th layer; RMSNorms compute 1 + w.
#include <cmath>

#include "base/bytes.h"
#include "model/hf/adapters.h"

namespace cairn {
namespace {

// Sets which layers are global: those of layer_types, else every n-th.
Status SetWindowLayers(HfBuilder& b) {
  ASSIGN_OR_RETURN(const int64_t layers, b.Integer("num_hidden_layers"));
  ASSIGN_OR_RETURN(const auto types, ReadLayerTypes(b, layers));
  int64_t interval = 6;
  for (const char* key : {"sliding_window_pattern", "_sliding_window_pattern"}) {
    ASSIGN_OR_RETURN(interval, b.IntegerOr(key, interval));
  }
  if (interval < 1) return DataLoss("[hf] config.json: got no sliding_window_pattern");
  std::vector<bool> global;
  std::vector<int64_t> windows;
  for (const std::string& type : types) {
    if (type != "full_attention" && type != "sliding_attention") {
      return Unsupported("[hf] config.json: got layer type " + QuoteForMessage(type) +
                         ", wanted full_attention or sliding_attention");
    }
    global.push_back(type == "full_attention");
    windows.push_back(type == "full_attention" ? 0 : 1);
  }
  if (!types.empty()) interval = IntervalOf(global);
  interval > 0 ? b.Set("attention.sliding_window_pattern", interval)
               : b.SetIntegers("attention.sliding_window_pattern", windows);
  return {};
}

Result<double> LocalBase(const HfBuilder& b) {
  const JsonValue* rope = b.Find("rope_parameters");
  const JsonValue* local = rope == nullptr ? nullptr : rope->Find("sliding_attention");
  const JsonValue* base = local == nullptr ? nullptr : local->Find("rope_theta");
  if (base != nullptr && base->AsNumber()) return *base->AsNumber();
  return b.NumberOr("rope_local_base_freq", 10000);
}

Status SetKeys(HfBuilder& b) {
  RETURN_IF_ERROR(b.Demand("hidden_activation", "gelu_pytorch_tanh"));
  RETURN_IF_ERROR(b.Demand("use_bidirectional_attention", false));  // EmbeddingGemma
  RETURN_IF_ERROR(SetDecoderKeys(b));
  ASSIGN_OR_RETURN(const int64_t ffn, b.Integer("intermediate_size"));
  b.Set("feed_forward_length", ffn);
  ASSIGN_OR_RETURN(const int64_t head_dim, SetHeadKeys(b, {}));
  RETURN_IF_ERROR(SetRopeKeys(b, head_dim));
  ASSIGN_OR_RETURN(const double local_base, LocalBase(b));
  b.SetFloat("rope.freq_base_swa", local_base);
  ASSIGN_OR_RETURN(const int64_t window, b.IntegerOr("sliding_window", 4096));
  b.Set("attention.sliding_window", window);
  RETURN_IF_ERROR(SetWindowLayers(b));
  ASSIGN_OR_RETURN(const double scalar, b.NumberOr("query_pre_attn_scalar", 256));
  if (!(scalar > 0)) return DataLoss("[hf] config.json: got no query_pre_attn_scalar");
  b.SetFloat("attention.scale", 1 / std::sqrt(scalar));
  for (const char* cap : {"final_logit_softcapping", "attn_logit_softcapping"}) {
    ASSIGN_OR_RETURN(const double value, b.NumberOr(cap, 0));
    if (value != 0) b.SetFloat(cap, value);
  }
  return {};
}

}  // namespace

Status BuildGemma3(HfBuilder& b) {
  // Gemma3TextConfig of Transformers: the larger models' files leave these out.
  b.SetDefaults(R"({"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
                    "max_position_embeddings": 131072, "rope_theta": 1000000.0,
                    "tie_word_embeddings": true})");
  RETURN_IF_ERROR(SetKeys(b));
  RETURN_IF_ERROR(b.SetRoot({"model.", "language_model.model.", "model.language_model."},
                            "embed_tokens.weight"));
  constexpr HfValue kNorm = HfValue::kAddOne;  // MLX directories too
  RETURN_IF_ERROR(MapFrame(b, "norm.weight", kNorm));
  ASSIGN_OR_RETURN(const int64_t layers, b.Integer("num_hidden_layers"));
  for (int64_t i = 0; i < layers; ++i) {
    const std::string to = BlockName(i), from = LayerName(i), attention = from + "self_attn.";
    const std::pair<const char*, const char*> norms[] = {
        {"attn_norm.weight", "input_layernorm.weight"},
        {"post_attention_norm.weight", "post_attention_layernorm.weight"},
        {"ffn_norm.weight", "pre_feedforward_layernorm.weight"},
        {"post_ffw_norm.weight", "post_feedforward_layernorm.weight"},
        {"attn_q_norm.weight", "self_attn.q_norm.weight"},
        {"attn_k_norm.weight", "self_attn.k_norm.weight"}};
    for (const auto& [gguf, hf] : norms) RETURN_IF_ERROR(b.Map(to + gguf, from + hf, kNorm));
    RETURN_IF_ERROR(b.MapLinear(to + "attn_q", attention + "q_proj"));
    RETURN_IF_ERROR(b.MapLinear(to + "attn_k", attention + "k_proj"));
    RETURN_IF_ERROR(b.MapLinear(to + "attn_v", attention + "v_proj"));
    RETURN_IF_ERROR(b.MapLinear(to + "attn_output", attention + "o_proj"));
    RETURN_IF_ERROR(ExpectBiases(b, "attention_bias", false, attention,
                                 {"q_proj", "k_proj", "v_proj", "o_proj"}));
    RETURN_IF_ERROR(MapSwiGlu(b, to, from + "mlp."));
  }
  return {};
}

}  // namespace cairn
