// Hyperparameters of Granite 4.0 H: Mamba2 layers with full attention in a few, a feed-forward
// block or a mixture of experts in each, and factors on embedding, branches and logits.
#pragma once

#include <optional>

#include "model/layers/moe_ffn.h"
#include "model/mamba2_config.h"

namespace cairn {

struct GraniteHybridConfig {
  DecoderConfig decoder;
  Mamba2Config mixer;
  std::optional<MoeConfig> moe;
  bool rotary = false;  // Bamba; Granite 4.0 H has no positions

  bool IsAttention(int layer) const { return decoder.layer_kv_heads[layer] > 0; }
};

// Errors: those of ReadDecoderConfig.
Result<GraniteHybridConfig> ReadGraniteHybridConfig(const ModelFile& file);

}  // namespace cairn
