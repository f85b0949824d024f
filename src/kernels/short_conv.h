// The gated short convolution of LFM2, one pass over its input projection: with s_t[c] = B_t[c] *
// u_t[c] (rounded once),
//   y_t[c] = C_t[c] * sum_{j<K} w[j][c] * s_{t-K+1+j}[c]
// where the sum starts at the bias (or +0) and takes one fma per tap, oldest first. State
// [K-1][channels]: the last K-1 values of s, oldest first. Source: arXiv 2511.23404.
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

struct ShortConvShape {
  int channels;
  int kernel;  // K, 2..8
  size_t state_floats() const { return static_cast<size_t>(kernel - 1) * channels; }
};

// bcu [rows, ld]: B, C, u of `channels` each side by side -> y [rows, ldy], `channels` a row; w
// [K][channels] (transposed at load); bias [channels] or empty. y may not overlap bcu; a tap's dst
// may not overlap a state.
void ShortConv(const KernelContext& ctx, const ShortConvShape& shape,
               std::span<const RecurrentSlice> slices, const float* bcu, int64_t ld,
               std::span<const float> w, std::span<const float> bias, float* y, int64_t ldy);

}  // namespace cairn
