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

constexpr int64_t kHeadsMax = 65536;  // so that no product of sizes overflows

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

std::string_view LayerTypeName(std::string_view name) {
  if (name == "mamba") return "linear_attention";
  return name == "attention" ? "full_attention" : name;
}

Result<std::vector<std::string>> ReadLayerTypes(const HfBuilder& b, int64_t layers) {
  ASSIGN_OR_RETURN(std::vector<std::string> types, b.Strings("layer_types"));
  if (!types.empty() && static_cast<int64_t>(types.size()) != layers) {
    return DataLoss("[hf] config.json: got " + std::to_string(types.size()) +
                    " layer_types, wanted one for each of " + std::to_string(layers) + " layers");
  }
  for (std::string& type : types) type = std::string(LayerTypeName(type));
  return types;
}

int64_t IntervalOf(const std::vector<bool>& layers) {
  const auto first = std::find(layers.begin(), layers.end(), true) - layers.begin();
  const int64_t interval = first + 1;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (layers[i] != ((static_cast<int64_t>(i) + 1) % interval == 0)) return 0;
  }
  return interval;
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
  ASSIGN_OR_RETURN(const int64_t most, b.IntegerOr("model_max_length", 1 << 20));  // Kimi
  ASSIGN_OR_RETURN(const int64_t context, b.IntegerOr("max_position_embeddings", most));
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
  if (heads < 1 || heads > kHeadsMax)
    return DataLoss("[hf] config.json: got " + std::to_string(heads) + " attention heads");
  ASSIGN_OR_RETURN(const int64_t kv_heads, b.IntegerOr("num_key_value_heads", heads));
  // attention_head_dim: Nemotron-H of 2025.
  ASSIGN_OR_RETURN(const int64_t other, b.IntegerOr("attention_head_dim", hidden / heads));
  ASSIGN_OR_RETURN(const int64_t head_dim, b.IntegerOr("head_dim", other));
  b.Set("attention.head_count", heads);
  layer_kv_heads.empty() ? b.Set("attention.head_count_kv", kv_heads)
                         : b.SetIntegers("attention.head_count_kv", layer_kv_heads);
  b.Set("attention.key_length", head_dim);
  b.Set("attention.value_length", head_dim);
  return head_dim;
}

Status MapFrame(HfBuilder& b, std::string_view norm, HfValue norm_value,
                const std::string& norm_to) {
  const char* name = b.Has("embeddings.weight") ? "embeddings.weight" : "embed_tokens.weight";
  ASSIGN_OR_RETURN(const HfSource* embedding, b.Source(name));
  ASSIGN_OR_RETURN(const int64_t vocab, b.IntegerOr("vocab_size", embedding->rows));
  if (vocab != embedding->rows) {
    return DataLoss("[hf] tensor " + QuoteForMessage(embedding->name) + ": got " +
                    std::to_string(embedding->rows) + " rows, wanted " + std::to_string(vocab) +
                    " (vocab_size)");
  }
  RETURN_IF_ERROR(b.Map("token_embd.weight", name));
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

Status ExpectBiases(const HfBuilder& b, std::string_view key, bool fallback,
                    const std::string& from, std::initializer_list<const char*> parts) {
  ASSIGN_OR_RETURN(const bool biased, b.BoolOr(key, fallback));
  for (const char* part : parts) {
    const std::string name = from + part + ".bias";
    if (!biased || b.Has(name)) continue;
    return NotFound("[hf] tensor " + QuoteForMessage(b.Absolute(name)) + ": got none, wanted it (" +
                    std::string(key) + ")");
  }
  return {};
}

Status MapSwiGlu(HfBuilder& b, const std::string& to, const std::string& from) {
  RETURN_IF_ERROR(b.MapLinear(to + "ffn_gate", from + "gate_proj"));
  RETURN_IF_ERROR(b.MapLinear(to + "ffn_up", from + "up_proj"));
  return b.MapLinear(to + "ffn_down", from + "down_proj");
}

}  // namespace cairn
