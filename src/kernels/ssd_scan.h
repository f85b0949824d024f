// The selective scan of Mamba2 (state space duality), token-sequential (never the chunked form: its
// bits depend on the chunking). Source: arXiv 2405.21060.
//
// Per head h of P channels with group h / (H / G) and memory M [N][P] f32 (state-major, so that
// vectors run along the channels and the sum over states needs no fold), per token:
//   dt = softplus(raw + dt_bias), kept within limits;  decay = exp(a_neg * dt), a_neg = -exp(A_log)
//   M = decay M + (dt u) B^T;  out = M C + D u.
// The definition, on every level, for one channel (n runs over the states):
//   x    = dt * u
//   M[n] = fma(x, B[n], decay * M[n])
//   y    = fma(C[n], M[n], y), n ascending, from +0
//   out  = fma(D, u, y)
// A piece of M stays in L1 over all rows of a slice; where N is cut into pieces, the partial y of a
// row waits in `out` and goes on in the same order, so neither pieces, chunks nor taps change a
// bit.
//
// Threads: SsdScan runs slices x tiles of channels, SsdGates rows, in parallel on ctx.pool. Nothing
// is allocated; states and taps are the caller's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/kernel_context.h"
#include "kernels/recurrent.h"
#include "kernels/ssd_scan_levels.h"

namespace cairn {

struct SsdShape {
  int heads;      // H
  int head_dim;   // P
  int groups;     // G, divides H
  int state_dim;  // N
  int inner() const { return heads * head_dim; }
  int group_states() const { return groups * state_dim; }  // values of B (or C) in a row
  size_t state_floats() const {
    return static_cast<size_t>(heads) * state_dim * head_dim;
  }  // [H][N][P]
};

// dt[r, h] = softplus(raw[r, h] + dt_bias[h]) within the limits; decay[r, h] = exp(a_neg[h] * dt[r,
// h]). raw [rows, ld]; dt_bias, a_neg [heads]; dt, decay [rows, heads] contiguous. Errors of the
// functions: vector_math.h.
void SsdGates(const KernelContext& ctx, const float* raw, int64_t ld, const float* dt_bias,
              const float* a_neg, int rows, int heads, float* dt, float* decay,
              SsdStepLimits limits = {});

// u [rows, ld]: H x P; b, c [rows, ld]: G x N; dt, decay [rows, H]; d [H]. out [rows, ldout]: H x
// P, must not overlap an input. A tap's dst may not overlap a state.
void SsdScan(const KernelContext& ctx, const SsdShape& shape,
             std::span<const RecurrentSlice> slices, const float* u, const float* b, const float* c,
             int64_t ld, const float* dt, const float* decay, const float* d, float* out,
             int64_t ldout);

}  // namespace cairn
