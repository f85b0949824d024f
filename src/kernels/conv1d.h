// Causal depthwise convolution with carried state: y_t[c] = act(bias[c] + sum_{j<K} w[j][c] *
// u_{t-K+1+j}[c]): the accumulator starts at the bias (or +0), then one fma per tap, oldest first.
// State [K-1][channels]: the last K-1 inputs, oldest first.
//
// Threads: slices x channel tiles run in parallel on ctx.pool. Nothing is allocated; states and
// taps are the caller's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/kernel_context.h"
#include "kernels/recurrent.h"

namespace cairn {

enum class ConvActivation { kNone, kSilu };

struct Conv1dShape {
  int channels;
  int kernel;  // K, 2..8
  ConvActivation activation;
  size_t state_floats() const { return static_cast<size_t>(kernel - 1) * channels; }
};

// u [rows, ldu] -> y [rows, ldy], `channels` values a row; w [K][channels] (transposed at load);
// bias [channels] or empty. y may not overlap u; a tap's dst may not overlap a state.
void Conv1d(const KernelContext& ctx, const Conv1dShape& shape,
            std::span<const RecurrentSlice> slices, const float* u, int64_t ldu,
            std::span<const float> w, std::span<const float> bias, float* y, int64_t ldy);

}  // namespace cairn
