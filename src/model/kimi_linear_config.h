// Hyperparameters of Kimi Linear: Kimi Delta Attention, with latent attention where
// attention.head_count_kv names key-value heads.
#pragma once

#include <optional>

#include "kernels/gated_delta.h"
#include "model/config.h"
#include "model/moe_config.h"

namespace cairn {

// Sizes of latent attention (MLA). Of a token one row is kept for all heads: the latent, from which
// a head makes its keys and values, and a part that is every head's key as it is.
struct LatentAttentionSizes {
  int latent = 0;    // R
  int shared = 0;    // key channels that all heads share
  int head_key = 0;  // key channels of a head that come from the latent
  int head_value = 0;

  int row() const { return latent + shared; }
  int query() const { return head_key + shared; }  // of a head
};

struct KimiLinearConfig {
  DecoderConfig decoder;  // attention is over rows: one KV head of row() channels
  LatentAttentionSizes latent;
  GatedDeltaShape delta;
  int conv_kernel = 0;
  std::optional<MoeConfig> moe;
  int dense_layers = 0;  // before the first with experts

  bool IsAttention(int layer) const { return decoder.layer_kv_heads[layer] > 0; }
  bool HasExperts(int layer) const { return moe.has_value() && layer >= dense_layers; }
};

// Of a "kimi-linear" file. Errors: DataLoss, Unsupported (rows wider than the attention kernel's
// 576 channels, or no multiple of 8).
Result<KimiLinearConfig> ReadKimiLinearConfig(const ModelFile& file);

}  // namespace cairn
