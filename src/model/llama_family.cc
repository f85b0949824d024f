#include "model/llama_family.h"

#include <cmath>
#include <string>

namespace cairn {
namespace {

constexpr LlamaFamily kFamilies[] = {
    {.name = "llama", .pairs = RopePairs::kInterleaved},  // Llama, Mistral, Mixtral, SmolLM2
    {.name = "mistral3", .pairs = RopePairs::kInterleaved, .growing_queries = true},  // Ministral 3
    {.name = "smollm3", .pairs = RopePairs::kInterleaved, .rotary_interval = 4},
    {.name = "qwen2"},
    {.name = "qwen2moe", .renormalise = false},
    {.name = "qwen3", .head_norms = true},
    {.name = "qwen3moe", .head_norms = true},
};

// What related architectures have and this file must not ask for.
Status RefuseOtherTerms(const ModelFile& file, const DecoderConfig& config, bool growing_queries) {
  const std::string prefix = config.architecture + ".";
  for (const char* key : {"attention.temperature_scale", "attention.scale", "logit_scale"}) {
    if (growing_queries && std::string_view(key) == "attention.temperature_scale") continue;
    ASSIGN_OR_RETURN(const float value, file.GetF32Or(prefix + key, 0));
    if (value != 0) return Unsupported("[model] " + prefix + key + " is not in this version");
  }
  return {};
}

// rope.rotary_layers, [layer_count] of 0 and 1, is a key of ours: directories have it of
// config.json. llama.cpp's converter writes nothing and takes every 4th layer of SmolLM3 to be
// without positions.
Result<std::vector<int>> ReadRotaryLayers(const ModelFile& file, const LlamaFamily& family,
                                          const DecoderConfig& config) {
  const int layers = config.layer_count, interval = family.rotary_interval;
  if (interval > 0 && file.Has(config.architecture + ".rope.rotary_layers"))
    return ReadLayerSizes(file, config.architecture, "rope.rotary_layers", layers, 0, 1);
  std::vector<int> rotary(static_cast<size_t>(layers), 1);
  for (int i = interval; interval > 0 && i <= layers; i += interval) rotary[i - 1] = 0;
  return rotary;
}

// attention.temperature_scale; the period is the context before it was stretched.
Result<QueryGrowth> ReadGrowth(const ModelFile& file, const DecoderConfig& config) {
  QueryGrowth growth;
  const std::string key = config.architecture + ".attention.temperature_scale";
  ASSIGN_OR_RETURN(growth.rate, file.GetF32Or(key, 0));
  if (!std::isfinite(growth.rate) || growth.rate < 0 || growth.rate > 1000)
    return DataLoss("[model] " + key + " is " + std::to_string(growth.rate));
  growth.period = config.rope.original_context;
  return growth;
}

}  // namespace

Result<LlamaConfig> ReadLlamaConfig(const ModelFile& file) {
  ASSIGN_OR_RETURN(const std::string_view name, file.GetString("general.architecture"));
  for (const LlamaFamily& family : kFamilies) {
    if (family.name != name) continue;
    LlamaConfig config;
    config.family = family;
    ASSIGN_OR_RETURN(config.decoder, ReadDecoderConfig(file, name));
    for (const int kv_heads : config.decoder.layer_kv_heads)
      if (kv_heads == 0) return Unsupported("[model] a layer without attention");
    ASSIGN_OR_RETURN(config.rotary_layers, ReadRotaryLayers(file, family, config.decoder));
    RETURN_IF_ERROR(RefuseOtherTerms(file, config.decoder, family.growing_queries));
    ASSIGN_OR_RETURN(config.window,
                     ReadSize(file, name, "attention.sliding_window", 0, 1 << 30, 0));
    if (family.growing_queries) {
      ASSIGN_OR_RETURN(config.growth, ReadGrowth(file, config.decoder));
    }
    ASSIGN_OR_RETURN(config.moe, ReadMoeConfig(file, name, config.decoder.ffn_size,
                                               {.renormalise = family.renormalise}));
    return config;
  }
  return Unsupported("[model] no decoder of the Llama family: " + std::string(name.substr(0, 64)));
}

}  // namespace cairn
