#include "model/hf/adapters.h"

#include <algorithm>
#include <array>
#include <string>

#include "base/bytes.h"

namespace cairn {
namespace {

constexpr auto kAdapters = std::to_array<HfAdapter>({
    {"llama", "LlamaForCausalLM", "llama", BuildLlama},
    {"mistral", "MistralForCausalLM", "llama", BuildLlama},
    {"ministral3", "Ministral3ForCausalLM", "mistral3", BuildLlama},
    {"mixtral", "MixtralForCausalLM", "llama", BuildMixtral},
    {"smollm3", "SmolLM3ForCausalLM", "smollm3", BuildLlama},
    {"qwen2", "Qwen2ForCausalLM", "qwen2", BuildQwen},
    {"qwen2_moe", "Qwen2MoeForCausalLM", "qwen2moe", BuildQwen},
    {"qwen3", "Qwen3ForCausalLM", "qwen3", BuildQwen},
    {"qwen3_moe", "Qwen3MoeForCausalLM", "qwen3moe", BuildQwen},
    {"qwen3_5", "Qwen3_5ForConditionalGeneration", "qwen35", BuildQwen35},
    {"qwen3_5_text", "Qwen3_5ForCausalLM", "qwen35", BuildQwen35},
    {"qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration", "qwen35moe", BuildQwen35},
    {"qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", "qwen35moe", BuildQwen35},
    {"qwen3_next", "Qwen3NextForCausalLM", "qwen3next", BuildQwen35},
    {"lfm2", "Lfm2ForCausalLM", "lfm2", BuildLfm2},
    {"lfm2_moe", "Lfm2MoeForCausalLM", "lfm2moe", BuildLfm2},
    {"kimi_linear", "KimiLinearForCausalLM", "kimi-linear", BuildKimiLinear},
    {"gemma3_text", "Gemma3ForCausalLM", "gemma3", BuildGemma3},
    {"gemma3", "Gemma3ForConditionalGeneration", "gemma3", BuildGemma3},
    {"mamba2", "Mamba2ForCausalLM", "mamba2", BuildMamba2},
    {"granitemoehybrid", "GraniteMoeHybridForCausalLM", "granitehybrid", BuildGraniteHybrid},
    {"falcon_h1", "FalconH1ForCausalLM", "falcon-h1", BuildFalconH1},
    {"nemotron_h", "NemotronHForCausalLM", "nemotron_h", BuildNemotronH, NemotronHArchitecture},
});

std::string_view StringIn(const JsonValue* config, std::string_view key) {
  const JsonValue* value = config == nullptr ? nullptr : config->Find(key);
  return value == nullptr ? std::string_view() : value->AsString().value_or("");
}

}  // namespace

std::span<const HfAdapter> HfAdapters() { return kAdapters; }

Result<const HfAdapter*> FindHfAdapter(const JsonValue& config) {
  const std::string_view outer = StringIn(&config, "model_type");
  const std::string_view inner = StringIn(config.Find("text_config"), "model_type");
  const JsonValue* classes = config.Find("architectures");
  std::string_view class_name;
  if (classes != nullptr && !classes->elements().empty())
    class_name = classes->elements()[0].AsString().value_or("");
  for (const HfAdapter& adapter : kAdapters) {
    if (!outer.empty() && (adapter.model_type == outer || adapter.model_type == inner))
      return &adapter;
    if (outer.empty() && !class_name.empty() && adapter.class_name == class_name) return &adapter;
  }
  std::string known;
  for (const HfAdapter& adapter : kAdapters)
    known += (known.empty() ? "" : ", ") + std::string(adapter.model_type);
  if (outer.empty() && class_name.empty())
    return DataLoss("[hf] config.json: got no model_type, wanted one of " + known);
  return Unsupported("[hf] unknown model_type " +
                     QuoteForMessage(outer.empty() ? class_name : outer) + "; this version knows " +
                     known);
}

std::string BlockName(int64_t layer) { return "blk." + std::to_string(layer) + "."; }
std::string LayerName(int64_t layer) { return "layers." + std::to_string(layer) + "."; }

Status SetDecoderKeys(HfBuilder& b) {
  ASSIGN_OR_RETURN(const int64_t layers, b.Integer("num_hidden_layers"));
  return SetDecoderKeys(b, layers);
}

Status SetDecoderKeys(HfBuilder& b, int64_t layers) {
  ASSIGN_OR_RETURN(const int64_t hidden, b.Integer("hidden_size"));
  if (layers < 1 || layers > 4096)
    return DataLoss("[hf] config.json: got " + std::to_string(layers) + " num_hidden_layers");
  ASSIGN_OR_RETURN(const int64_t context, b.IntegerOr("max_position_embeddings", 1 << 20));
  double eps = 1e-6;
  for (const char* key : {"norm_eps", "rms_norm_eps", "layer_norm_epsilon"}) {
    ASSIGN_OR_RETURN(eps, b.NumberOr(key, eps));
  }
  b.Set("embedding_length", hidden);
  b.Set("block_count", layers);
  b.Set("context_length", context);
  b.SetFloat("attention.layer_norm_rms_epsilon", eps);
  return {};
}

Result<int64_t> SetHeadKeys(HfBuilder& b, const std::vector<int64_t>& layer_kv_heads) {
  ASSIGN_OR_RETURN(const int64_t hidden, b.Integer("hidden_size"));
  ASSIGN_OR_RETURN(const int64_t heads, b.Integer("num_attention_heads"));
  if (heads < 1) return DataLoss("[hf] config.json: got no attention heads");
  ASSIGN_OR_RETURN(const int64_t kv_heads, b.IntegerOr("num_key_value_heads", heads));
  ASSIGN_OR_RETURN(const int64_t head_dim, b.IntegerOr("head_dim", hidden / heads));
  b.Set("attention.head_count", heads);
  layer_kv_heads.empty() ? b.Set("attention.head_count_kv", kv_heads)
                         : b.SetIntegers("attention.head_count_kv", layer_kv_heads);
  b.Set("attention.key_length", head_dim);
  b.Set("attention.value_length", head_dim);
  return head_dim;
}

Status MapFrame(HfBuilder& b, std::string_view norm, HfValue norm_value,
                const std::string& norm_to) {
  const bool is_mamba = b.Has("embeddings.weight");
  RETURN_IF_ERROR(
      b.Map("token_embd.weight", is_mamba ? "embeddings.weight" : "embed_tokens.weight"));
  const char* heads[] = {"/lm_head.weight", "/language_model.lm_head.weight",
                         "/model.lm_head.weight"};
  const auto head = std::find_if(std::begin(heads), std::end(heads),
                                 [&](const char* name) { return b.Has(name); });
  ASSIGN_OR_RETURN(const bool tied, b.BoolOr("tie_word_embeddings", head == std::end(heads)));
  if (tied) {
    // A copy of the embedding that some checkpoints carry.
    for (const char* name : heads)
      b.SkipPrefix(std::string(name + 1, std::string(name).size() - 7));
  } else if (head == std::end(heads)) {
    return NotFound(
        "[hf] tensor 'lm_head.weight': got none, wanted it (the embedding is not tied)");
  } else {
    RETURN_IF_ERROR(b.Map("output.weight", *head));
  }
  return b.Map(norm_to, norm, norm_value);
}

Status MapSwiGlu(HfBuilder& b, const std::string& to, const std::string& from) {
  RETURN_IF_ERROR(b.MapLinear(to + "ffn_gate", from + "gate_proj"));
  RETURN_IF_ERROR(b.MapLinear(to + "ffn_up", from + "up_proj"));
  return b.MapLinear(to + "ffn_down", from + "down_proj");
}

}  // namespace cairn
