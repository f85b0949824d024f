#include "model/gemma3_config.h"

#include <cmath>
#include <string>

namespace cairn {

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
  ASSIGN_OR_RETURN(config.global_interval, ReadSize(file, kArch, "attention.sliding_window_pattern",
                                                    1, 1 << 16, config.window > 0 ? 6 : 1));
  if (config.window == 0) config.global_interval = 1;
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
