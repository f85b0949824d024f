#include "model/lfm2_config.h"

#include <string>

namespace cairn {

Result<Lfm2Config> ReadLfm2Config(const ModelFile& file) {
  ASSIGN_OR_RETURN(const std::string_view name, file.GetString("general.architecture"));
  Lfm2Config config;
  ASSIGN_OR_RETURN(config.decoder, ReadDecoderConfig(file, name));
  ASSIGN_OR_RETURN(config.conv_kernel, ReadSize(file, name, "shortconv.l_cache", 2, 8));
  ASSIGN_OR_RETURN(const int window,
                   ReadSize(file, name, "attention.sliding_window", 0, 1 << 30, 0));
  if (window > 0 && window < config.decoder.trained_context_length) {
    return Unsupported("[model] " + std::string(name) +
                       ".attention.sliding_window is not in this version");
  }
  // 1e-6: the published model code.
  ASSIGN_OR_RETURN(config.moe,
                   ReadMoeConfig(file, name, config.decoder.ffn_size,
                                 {.gate = RouterGate::kSigmoid, .denominator_add = 1e-6f}));
  ASSIGN_OR_RETURN(config.dense_layers, ReadSize(file, name, "leading_dense_block_count", 0,
                                                 config.decoder.layer_count, 0));
  return config;
}

}  // namespace cairn
