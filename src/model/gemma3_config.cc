#include "model/gemma3_config.h"

#include <cmath>
#include <string>

namespace cairn {

// attention.sliding_window_pattern: an array, or n where every n-th layer is global.
static Result<std::vector<int>> ReadWindowLayers(const ModelFile& file, std::string_view arch,
                                                 int layers) {
  constexpr std::string_view kKey = "attention.sliding_window_pattern";
  if (file.ArraySize(std::string(arch) + "." + std::string(kKey)).has_value())
    return ReadLayerSizes(file, arch, kKey, layers, 0, 1);
  ASSIGN_OR_RETURN(const int interval, ReadSize(file, arch, kKey, 1, 1 << 16, 6));
  std::vector<int> windows;
  for (int i = 1; i <= layers; ++i) windows.push_back(i % interval == 0 ? 0 : 1);
  return windows;
}

Result<Gemma3Config> ReadGemma3Config(const ModelFile& file) {
  constexpr std::string_view kArch = "gemma3";
  const std::string prefix = std::string(kArch) + ".";
  Gemma3Config config;
  ASSIGN_OR_RETURN(config.decoder, ReadDecoderConfig(file, kArch));
  DecoderConfig& decoder = config.decoder;
  for (const char* key : {"final_logit_softcapping", "attn_logit_softcapping"}) {
    ASSIGN_OR_RETURN(const float cap, file.GetF32Or(prefix + key, 0));
    if (cap != 0) return Unsupported("[model] " + prefix + key + " is not in this version");
  }
  // Files without a window: every layer is global.
  ASSIGN_OR_RETURN(config.window, ReadSize(file, kArch, "attention.sliding_window", 0, 1 << 24, 0));
  config.window_layers.assign(static_cast<size_t>(decoder.layer_count), 0);
  if (config.window > 0) {
    ASSIGN_OR_RETURN(config.window_layers, ReadWindowLayers(file, kArch, decoder.layer_count));
  }
  config.local_rope = {.dims = decoder.rope.dims};
  ASSIGN_OR_RETURN(const float base, file.GetF32Or(prefix + "rope.freq_base_swa", 10000));
  if (!(base > 0) || !std::isfinite(base)) return DataLoss("[model] gemma3.rope.freq_base_swa");
  config.local_rope.base = base;

  decoder.embedding_scale = static_cast<float>(std::sqrt(static_cast<double>(decoder.hidden_size)));
  // query_pre_attn_scalar: the head size, but in the 27B model (62 layers) hidden / heads.
  ASSIGN_OR_RETURN(float scale, file.GetF32Or(prefix + "attention.scale", 0));
  constexpr int kLayersOf27B = 62;
  const double scalar = decoder.layer_count == kLayersOf27B
                            ? static_cast<double>(decoder.hidden_size) / decoder.heads
                            : decoder.head_dim;
  if (!(scale > 0)) scale = static_cast<float>(1 / std::sqrt(scalar));
  decoder.attention_scale = scale;
  return config;
}

}  // namespace cairn
