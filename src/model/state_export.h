// From a model's own state bytes to tensors in the checkpoint's order (state_tensor.h).
//
// Threads: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/attention.h"
#include "kernels/conv1d.h"
#include "kernels/gated_delta.h"
#include "kernels/rope.h"
#include "model/layers/mamba2_layer.h"
#include "model/state_tensor.h"

namespace cairn {

// layerI_k and layerI_v [kv_heads, tokens, d] of the KV at `kv_offset` of each block; with a window
// of its last positions only.
std::vector<StateTensor> ExportKv(int layer, const AttentionShape& shape, RopePairs pairs,
                                  size_t kv_offset, std::span<std::byte* const> blocks,
                                  int64_t tokens);

// layerI_k [1, tokens, latent] and layerI_v [1, tokens, the rest] of latent attention's rows.
std::vector<StateTensor> ExportLatentKv(int layer, const AttentionShape& shape, int64_t latent,
                                        size_t kv_offset, std::span<std::byte* const> blocks,
                                        int64_t tokens);

// layerI_conv [K - 1, channels] and layerI_ssm [heads, head_dim, states].
std::vector<StateTensor> ExportMamba2(int layer, const Mamba2Layer::Options& options,
                                      const std::byte* state);

// layerI_conv [K - 1, channels] and layerI_delta [value_heads, dv, dk].
std::vector<StateTensor> ExportGatedDelta(int layer, const GatedDeltaShape& shape, int conv_kernel,
                                          const float* conv, const float* delta);

}  // namespace cairn
