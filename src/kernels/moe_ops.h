// What a mixture of experts needs besides matmuls: the choice of experts, and the sum of their
// outputs; and the GELU form of a gated feed-forward block. The same bits on every level: lanes and
// reductions are those of vector_ops.h.
//
// Threads: pure functions on the caller's spans; rows are split over ctx.pool. Nothing is
// allocated.
#pragma once

#include <cstdint>

#include "kernels/kernel_context.h"

namespace cairn {

enum class RouterGate { kSoftmax, kSigmoid };

struct RouterShape {
  int experts;
  int used;  // experts of a token, 1..experts
  RouterGate gate;
  bool renormalise;       // weights are divided by (their sum + denominator_add)
  float denominator_add;  // 1e-20 (Kimi), 1e-6 (LFM2), 0
  float scale;            // routed_scaling_factor, applied last
};

// Per row: p = softmax(logits) over all experts (exp(x - max), sum by the 16-lane rule, one
// division each) or sigmoid(logits). The `used` experts of the largest p + bias are chosen (ties:
// the lower id), listed by ascending id in ids [rows, used]; their weights [rows, used] are p
// without the bias, renormalised (sum by ascending id) and scaled. logits [rows, ld] are
// overwritten by p. bias [experts] or null.
void RouteExperts(const KernelContext& ctx, const RouterShape& shape, float* logits, int64_t ld,
                  const float* bias, int rows, int32_t* ids, float* weights);

// out[r] = sum over i ascending of weights[r, i] * y[slots[r, i]] by fma from +0, then, if shared
// is not null, fma(g, shared[r], .) with g = sigmoid(shared_gate[r * gate_stride]), or 1 if
// shared_gate is null. y [.., n] contiguous, slots [rows, used]; shared, out [rows, n] contiguous
// and may be the same.
struct SharedExpert {
  const float* y = nullptr;
  const float* gate = nullptr;
  int64_t gate_stride = 0;
};
void CombineExperts(const KernelContext& ctx, const float* y, const int32_t* slots,
                    const float* weights, int rows, int used, int64_t n, const SharedExpert& shared,
                    float* out);

// h[r, i] = GELU(gate_up[r, i]) * gate_up[r, n + i]; gate_up [rows, ld], h [rows, n] contiguous.
// GELU in its tanh form, as x * sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)), which equals it.
void GeGluRows(const KernelContext& ctx, const float* gate_up, int64_t ld, int rows, int64_t n,
               float* h);
// The same on the calling thread.
void GeGlu(CpuLevel level, const float* gate_up, int64_t ld, int rows, int64_t n, float* h);

// x *= scale, [rows, n] contiguous.
void ScaleRows(const KernelContext& ctx, float* x, float scale, int rows, int64_t n);

}  // namespace cairn
