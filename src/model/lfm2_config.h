// Hyperparameters of LFM2 and LFM2-MoE: short convolutions, with full attention where
// attention.head_count_kv names key-value heads.
#pragma once

#include <optional>

#include "model/config.h"
#include "model/moe_config.h"

namespace cairn {

struct Lfm2Config {
  DecoderConfig decoder;
  int conv_kernel = 0;
  std::optional<MoeConfig> moe;
  int dense_layers = 0;  // before the first with experts

  bool IsAttention(int layer) const { return decoder.layer_kv_heads[layer] > 0; }
  bool HasExperts(int layer) const { return moe.has_value() && layer >= dense_layers; }
};

// Of a "lfm2" or "lfm2moe" file. Errors: those of ReadDecoderConfig.
Result<Lfm2Config> ReadLfm2Config(const ModelFile& file);

// The norm behind the last layer has the embedding's name in files of this family.
inline constexpr const char* kLfm2FinalNorm = "token_embd_norm.weight";

}  // namespace cairn
