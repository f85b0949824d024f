// Causal depthwise convolution with carried state: y_t[c] = act(sum_{j<K} w[j][c] * u_{t-K+1+j}[c]
// (+ bias[c])), one fma per tap, oldest first. State [K-1][channels]: the last K-1 inputs, oldest
// first.
#pragma once

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

// u [rows, ldu] -> y [rows, ldy]; w [K][channels] (transposed at load); bias [channels] or empty. y
// may not alias u.
void Conv1d(const KernelContext& ctx, const Conv1dShape& shape,
            std::span<const RecurrentSlice> slices, const float* u, int64_t ldu,
            std::span<const float> w, std::span<const float> bias, float* y, int64_t ldy);

}  // namespace cairn
