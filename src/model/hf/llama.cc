// Llama, Mistral, Mixtral (GGUF "llama") and SmolLM3, whose q and k rows GGUF permutes.
#include <algorithm>

#include "model/hf/adapters.h"

namespace cairn {
namespace {

constexpr int64_t kLayersMax = 1024;  // as ReadDecoderFrame

// What configs of their own leave out, and what the text_config of a model that also sees does:
// Transformers writes only what differs from these.
constexpr char kLlama[] =
    R"({"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "max_position_embeddings": 2048})";
constexpr char kMistral[] =
    R"({"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072})";
constexpr char kMinistral3[] =
    R"({"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 34,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "max_position_embeddings": 262144, "rms_norm_eps": 1e-05,
        "rope_parameters": {"type": "yarn", "rope_theta": 1000000.0, "factor": 16.0,
                            "original_max_position_embeddings": 16384, "beta_fast": 32.0,
                            "beta_slow": 1.0, "mscale_all_dim": 1.0, "mscale": 1.0,
                            "llama_4_scaling_beta": 0.1}})";
constexpr char kMixtral[] = R"({"rms_norm_eps": 1e-05})";
constexpr char kSmolLm3[] = R"({"rope_theta": 2000000.0, "tie_word_embeddings": true})";

Result<std::string_view> Defaults(const HfBuilder& b) {
  ASSIGN_OR_RETURN(const std::string type, b.StringOr("model_type", ""));
  if (type == "mixtral") return std::string_view(kMixtral);
  if (type == "smollm3") return std::string_view(kSmolLm3);
  if (!b.is_wrapped()) return std::string_view("{}");
  if (type == "ministral3") return std::string_view(kMinistral3);
  return std::string_view(type == "mistral" ? kMistral : kLlama);
}

// SmolLM3: no_rope_layers has 1 for each layer with positions; without it, every
// no_rope_layer_interval-th has none.
Status SetRotaryLayers(HfBuilder& b) {
  ASSIGN_OR_RETURN(const int64_t layers, b.Integer("num_hidden_layers"));
  ASSIGN_OR_RETURN(const int64_t interval, b.IntegerOr("no_rope_layer_interval", 4));
  if (interval < 1) {
    return DataLoss("[hf] config.json: got " + std::to_string(interval) +
                    " as no_rope_layer_interval, wanted at least 1");
  }
  std::vector<int64_t> rotary;
  if (const JsonValue* list = b.Find("no_rope_layers"); list != nullptr) {
    if (static_cast<int64_t>(list->elements().size()) != layers) {
      return DataLoss("[hf] config.json: got " + std::to_string(list->elements().size()) +
                      " elements as no_rope_layers, wanted one for each of " +
                      std::to_string(layers) + " layers");
    }
    for (const JsonValue& element : list->elements())
      rotary.push_back(element.AsInteger().value_or(-1));  // ReadLlamaConfig takes 0 and 1 only
  } else {
    for (int64_t i = 1; i <= std::min(layers, kLayersMax); ++i)
      rotary.push_back(i % interval == 0 ? 0 : 1);
  }
  b.SetIntegers("rope.rotary_layers", rotary);
  return {};
}

constexpr ExpertNames kExpertNames = {
    .gate = "w1", .up = "w3", .down = "w2", .fused = "", .fused_down = ""};

Status MapMixtralFfn(HfBuilder& b, const std::string& to, const std::string& from) {
  ASSIGN_OR_RETURN(const int64_t experts, b.Integer("num_local_experts"));
  ASSIGN_OR_RETURN(const int64_t ffn, b.Integer("intermediate_size"));
  const std::string moe = from + "block_sparse_moe.";
  const bool stacked = b.Has(moe + "switch_mlp.gate_proj.weight");  // MLX
  RETURN_IF_ERROR(b.Map(to + "ffn_gate_inp.weight", moe + "gate.weight"));
  return MapExperts(b, to, moe, stacked ? ExpertNames{} : kExpertNames, experts, ffn);
}

Status MapDenseFfn(HfBuilder& b, const std::string& to, const std::string& from) {
  RETURN_IF_ERROR(
      ExpectBiases(b, "mlp_bias", false, from + "mlp.", {"gate_proj", "up_proj", "down_proj"}));
  return MapSwiGlu(b, to, from + "mlp.");
}

// Ministral 3: queries that grow with the position, by the context before YaRN stretched it.
Status SetGrowth(HfBuilder& b) {
  const JsonValue* rope = b.Find("rope_parameters");
  const JsonValue* rate = rope == nullptr ? nullptr : rope->Find("llama_4_scaling_beta");
  if (rate == nullptr || rate->is_null()) return {};
  const JsonValue* period = rope->Find("original_max_position_embeddings");
  const JsonValue* type =
      rope->Find("rope_type") != nullptr ? rope->Find("rope_type") : rope->Find("type");
  if (!rate->AsNumber() || period == nullptr || type == nullptr || type->AsString() != "yarn") {
    return Unsupported("[hf] config.json: got llama_4_scaling_beta " + rate->Describe() +
                       ", wanted a number, beside original_max_position_embeddings of a yarn rope");
  }
  b.SetFloat("attention.temperature_scale", *rate->AsNumber());
  return {};
}

Status Build(HfBuilder& b, Status (*map_ffn)(HfBuilder&, const std::string&, const std::string&)) {
  ASSIGN_OR_RETURN(const std::string_view defaults, Defaults(b));
  b.SetDefaults(defaults);
  RETURN_IF_ERROR(b.Demand("hidden_act", "silu"));
  RETURN_IF_ERROR(b.Demand("use_sliding_window", false));
  if (b.architecture() == "smollm3") RETURN_IF_ERROR(SetRotaryLayers(b));
  if (b.architecture() == "mistral3") RETURN_IF_ERROR(SetGrowth(b));
  if (b.Find("sliding_window") != nullptr && b.Find("use_sliding_window") == nullptr) {
    ASSIGN_OR_RETURN(const int64_t size, b.Integer("sliding_window"));
    b.Set("attention.sliding_window", size);
  }
  RETURN_IF_ERROR(SetDecoderKeys(b));
  ASSIGN_OR_RETURN(const int64_t ffn, b.Integer("intermediate_size"));
  b.Set("feed_forward_length", ffn);
  ASSIGN_OR_RETURN(const int64_t head_dim, SetHeadKeys(b, {}));
  RETURN_IF_ERROR(SetRopeKeys(b, head_dim));
  RETURN_IF_ERROR(b.SetRoot({"model.", "language_model.model.", "model.language_model."},
                            "embed_tokens.weight"));
  RETURN_IF_ERROR(MapFrame(b, "norm.weight", HfValue::kAsIs));
  ASSIGN_OR_RETURN(const int64_t layers, b.Integer("num_hidden_layers"));
  ASSIGN_OR_RETURN(const int64_t heads, b.Integer("num_attention_heads"));
  ASSIGN_OR_RETURN(const int64_t kv_heads, b.IntegerOr("num_key_value_heads", heads));
  for (int64_t i = 0; i < layers; ++i) {
    const std::string to = BlockName(i), from = LayerName(i);
    RETURN_IF_ERROR(b.Map(to + "attn_norm.weight", from + "input_layernorm.weight"));
    RETURN_IF_ERROR(b.MapPairs(to + "attn_q", from + "self_attn.q_proj", heads));
    RETURN_IF_ERROR(b.MapPairs(to + "attn_k", from + "self_attn.k_proj", kv_heads));
    RETURN_IF_ERROR(b.MapLinear(to + "attn_v", from + "self_attn.v_proj"));
    RETURN_IF_ERROR(b.MapLinear(to + "attn_output", from + "self_attn.o_proj"));
    RETURN_IF_ERROR(ExpectBiases(b, "attention_bias", false, from + "self_attn.",
                                 {"q_proj", "k_proj", "v_proj", "o_proj"}));
    RETURN_IF_ERROR(b.Map(to + "ffn_norm.weight", from + "post_attention_layernorm.weight"));
    RETURN_IF_ERROR(map_ffn(b, to, from));
  }
  return {};
}

}  // namespace

Status BuildLlama(HfBuilder& b) { return Build(b, MapDenseFfn); }

Status BuildMixtral(HfBuilder& b) {
  ASSIGN_OR_RETURN(const int64_t experts, b.Integer("num_local_experts"));
  ASSIGN_OR_RETURN(const int64_t used, b.Integer("num_experts_per_tok"));
  b.Set("expert_count", experts);
  b.Set("expert_used_count", used);
  return Build(b, MapMixtralFfn);
}

}  // namespace cairn
