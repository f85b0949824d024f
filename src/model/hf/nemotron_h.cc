// Nemotron-H: Mamba2, attention and feed-forward blocks, one a layer; the last of squared ReLU, or
// with experts of it (GGUF "nemotron_h_moe").
#include <algorithm>

#include "model/hf/adapters.h"

namespace cairn {
namespace {

constexpr char kMamba = 'M', kAttention = '*', kDense = '-', kExperts = 'E';

// NemotronHConfig of Transformers.
constexpr char kDefaults[] =
    R"({"attention_head_dim": 128, "max_position_embeddings": 4096, "layer_norm_epsilon": 1e-05,
        "n_groups": 8, "conv_kernel": 4})";

// The letter of a block in layers_block_type, in the names of any version.
char LetterOf(const JsonValue& element) {
  constexpr std::pair<std::string_view, char> kLetters[] = {{"linear_attention", kMamba},
                                                            {"full_attention", kAttention},
                                                            {"mlp", kDense},
                                                            {"moe", kExperts}};
  const std::string_view name = LayerTypeName(element.AsString().value_or(""));
  const auto at = std::ranges::find(kLetters, name, &std::pair<std::string_view, char>::first);
  return at == std::end(kLetters) ? '?' : at->second;
}

// One letter a layer, of hybrid_override_pattern, or of layers_block_type as newer configs have it.
template <typename Find>
std::string PatternOf(const Find& find) {
  std::string pattern;
  if (const JsonValue* text = find("hybrid_override_pattern"); text != nullptr) {
    if (text->is_string()) return std::string(*text->AsString());
    for (const JsonValue& letter : text->elements()) pattern += letter.AsString().value_or("?");
    return pattern;
  }
  for (const char* key : {"layers_block_type", "layer_types"}) {
    const JsonValue* list = find(key);
    if (list == nullptr) continue;
    for (const JsonValue& element : list->elements()) pattern += LetterOf(element);
    return pattern;
  }
  return pattern;
}

Result<std::string> ReadPattern(const HfBuilder& b) {
  const std::string pattern = PatternOf([&](const char* key) { return b.Find(key); });
  ASSIGN_OR_RETURN(const int64_t layers,
                   b.IntegerOr("num_hidden_layers", static_cast<int64_t>(pattern.size())));
  if (pattern.empty() || static_cast<int64_t>(pattern.size()) != layers ||
      pattern.find_first_not_of("M*-E") != std::string::npos) {
    return Unsupported("[hf] config.json: got hybrid_override_pattern '" + pattern.substr(0, 80) +
                       "', wanted M, *, - or E for each of " + std::to_string(layers) + " layers");
  }
  return pattern;
}

Status SetExperts(HfBuilder& b) {
  if (b.Find("moe_latent_size") != nullptr)
    return Unsupported(
        "[hf] config.json: experts in a latent space (moe_latent_size) are not in "
        "this version");
  ASSIGN_OR_RETURN(const int64_t experts, b.Integer("n_routed_experts"));
  ASSIGN_OR_RETURN(const int64_t used, b.Integer("num_experts_per_tok"));
  ASSIGN_OR_RETURN(const int64_t ffn, b.Integer("moe_intermediate_size"));
  ASSIGN_OR_RETURN(const int64_t groups, b.IntegerOr("n_group", 1));
  ASSIGN_OR_RETURN(const bool norm, b.BoolOr("norm_topk_prob", true));
  ASSIGN_OR_RETURN(const double scale, b.NumberOr("routed_scaling_factor", 1));
  ASSIGN_OR_RETURN(const int64_t shared, b.IntegerOr("n_shared_experts", 0));
  int64_t shared_ffn = 0;
  if (shared > 0) {
    ASSIGN_OR_RETURN(shared_ffn, b.Integer("moe_shared_expert_intermediate_size"));
  }
  b.Set("expert_count", experts);
  b.Set("expert_used_count", used);
  b.Set("expert_group_count", groups);
  b.Set("expert_feed_forward_length", ffn);
  b.Set("expert_shared_feed_forward_length", shared_ffn);
  b.Set("expert_gating_func", 2);
  b.SetBool("expert_weights_norm", norm);
  b.SetFloat("expert_weights_scale", scale);
  return {};
}

// Returns the sizes of the mixers.
Result<Mamba2Sizes> SetKeys(HfBuilder& b, const std::string& pattern) {
  RETURN_IF_ERROR(b.Demand("mlp_hidden_act", "relu2"));
  ASSIGN_OR_RETURN(const int64_t heads, b.Integer("num_attention_heads"));
  ASSIGN_OR_RETURN(const int64_t kv_heads, b.IntegerOr("num_key_value_heads", heads));
  ASSIGN_OR_RETURN(const int64_t ffn, b.Integer("intermediate_size"));
  std::vector<int64_t> layer_kv_heads, layer_ffn;
  for (const char kind : pattern) {
    layer_kv_heads.push_back(kind == kAttention ? kv_heads : 0);
    layer_ffn.push_back(kind == kDense || kind == kExperts ? ffn : 0);
  }
  RETURN_IF_ERROR(SetHeadKeys(b, layer_kv_heads).status());
  b.SetIntegers("feed_forward_length", layer_ffn);
  Mamba2Sizes s;
  ASSIGN_OR_RETURN(s.heads, b.Integer("mamba_num_heads"));
  ASSIGN_OR_RETURN(s.head_dim, b.Integer("mamba_head_dim"));
  ASSIGN_OR_RETURN(s.state, b.Integer("ssm_state_size"));
  ASSIGN_OR_RETURN(s.groups, b.Integer("n_groups"));
  ASSIGN_OR_RETURN(s.conv, b.Integer("conv_kernel"));
  RETURN_IF_ERROR(SetMamba2Keys(b, s));
  return s;
}

Status MapAttention(HfBuilder& b, const std::string& to, const std::string& from) {
  ASSIGN_OR_RETURN(const int64_t heads, b.Integer("num_attention_heads"));
  ASSIGN_OR_RETURN(const int64_t kv_heads, b.IntegerOr("num_key_value_heads", heads));
  RETURN_IF_ERROR(b.MapPairs(to + "attn_q", from + "q_proj", heads));
  RETURN_IF_ERROR(b.MapPairs(to + "attn_k", from + "k_proj", kv_heads));
  RETURN_IF_ERROR(b.MapLinear(to + "attn_v", from + "v_proj"));
  RETURN_IF_ERROR(
      ExpectBiases(b, "attention_bias", false, from, {"q_proj", "k_proj", "v_proj", "o_proj"}));
  return b.MapLinear(to + "attn_output", from + "o_proj");
}

Status MapDense(HfBuilder& b, const std::string& to, const std::string& from,
                const std::string& suffix = "") {
  RETURN_IF_ERROR(ExpectBiases(b, "mlp_bias", false, from, {"up_proj", "down_proj"}));
  RETURN_IF_ERROR(b.MapLinear(to + "ffn_up" + suffix, from + "up_proj"));
  return b.MapLinear(to + "ffn_down" + suffix, from + "down_proj");
}

Status MapMoe(HfBuilder& b, const std::string& to, const std::string& from) {
  ASSIGN_OR_RETURN(const int64_t experts, b.Integer("n_routed_experts"));
  ASSIGN_OR_RETURN(const int64_t ffn, b.Integer("moe_intermediate_size"));
  RETURN_IF_ERROR(b.Map(to + "ffn_gate_inp.weight", from + "gate.weight"));
  RETURN_IF_ERROR(b.Map(to + "exp_probs_b.bias", from + "gate.e_score_correction_bias"));
  const bool mlx = b.Has(from + "switch_mlp.fc1.weight");
  RETURN_IF_ERROR(MapExperts(b, to, from,
                             {.gate = "",
                              .up = mlx ? "fc1" : "up_proj",
                              .down = mlx ? "fc2" : "down_proj",
                              .fused = "",
                              .fused_down = ""},
                             experts, ffn));
  ASSIGN_OR_RETURN(const int64_t shared, b.IntegerOr("n_shared_experts", 0));
  if (shared == 0) return {};
  return MapDense(b, to, from + "shared_experts.", "_shexp");
}

}  // namespace

// By its blocks: Transformers writes n_routed_experts for models without experts too.
std::string_view NemotronHArchitecture(const JsonValue& config) {
  const JsonValue* text = config.Find("text_config");
  const std::string pattern = PatternOf([&](const char* key) {
    const JsonValue* value = text == nullptr ? nullptr : text->Find(key);
    if (value == nullptr || value->is_null()) value = config.Find(key);
    return value == nullptr || value->is_null() ? nullptr : value;
  });
  return pattern.find(kExperts) == std::string::npos ? "nemotron_h" : "nemotron_h_moe";
}

Status BuildNemotronH(HfBuilder& b) {
  b.SetDefaults(kDefaults);
  ASSIGN_OR_RETURN(const std::string pattern, ReadPattern(b));
  RETURN_IF_ERROR(SetDecoderKeys(b, static_cast<int64_t>(pattern.size())));
  if (b.architecture() == "nemotron_h_moe") {
    if (pattern.find(kDense) != std::string::npos)
      return Unsupported("[hf] config.json: got blocks with and without experts in one model");
    RETURN_IF_ERROR(SetExperts(b));
  }
  ASSIGN_OR_RETURN(const Mamba2Sizes sizes, SetKeys(b, pattern));
  RETURN_IF_ERROR(b.SetRoot({"backbone.", "model."}, "embeddings.weight"));
  RETURN_IF_ERROR(MapFrame(b, "norm_f.weight", HfValue::kAsIs));
  for (size_t i = 0; i < pattern.size(); ++i) {
    const int64_t layer = static_cast<int64_t>(i);
    const std::string to = BlockName(layer), from = LayerName(layer) + "mixer.";
    RETURN_IF_ERROR(b.Map(to + "attn_norm.weight", LayerName(layer) + "norm.weight"));
    if (pattern[i] == kMamba)
      RETURN_IF_ERROR(ExpectBiases(b, "use_conv_bias", true, from, {"conv1d"}));
    RETURN_IF_ERROR(pattern[i] == kMamba       ? MapMamba2(b, to, from, sizes.groups)
                    : pattern[i] == kAttention ? MapAttention(b, to, from)
                    : pattern[i] == kDense     ? MapDense(b, to, from)
                                               : MapMoe(b, to, from));
  }
  return {};
}

}  // namespace cairn
