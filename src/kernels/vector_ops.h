// Row-wise operations: norms, activations, softmax sums, element-wise glue. One definition for
// every level.
//
// Reductions inside a row run over 16 virtual lanes: lane j sums elements j, j + 16, j + 32, ... in
// order with fma (tail elements go to their lanes, missing ones add nothing), then lanes fold 8, 4,
// 2, 1 (lane j += lane j + 8, ...). Every level does exactly this. Exp, Sigmoid, SiLU, Softplus,
// Log are our own polynomials, the same operations in the same order on every level; each states
// its error. Threads: pure functions on the caller's spans; `rows` functions split rows over
// ctx.pool.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/kernel_context.h"

namespace cairn {

// y[r, :] = w * x[r, :] / sqrt(mean(x^2) + eps), r < rows; x, y [rows, n] contiguous, may alias.
// Source: RMSNorm, arXiv 1910.07467.
void RmsNormRows(const KernelContext& ctx, const float* x, const float* w, float eps, int rows,
                 int64_t n, float* y);
// The same over `heads` sub-rows of `n` inside rows of stride `ldx` (q/k norm); in place.
void RmsNormHeads(const KernelContext& ctx, float* x, int64_t ldx, const float* w, float eps,
                  int rows, int heads, int64_t n);
// x[r, h, :] *= scale / sqrt(sum(x^2) + eps) in place: the l2 norm of Gated DeltaNet's q and k.
void L2NormHeads(const KernelContext& ctx, float* x, int64_t ldx, float eps, float scale, int rows,
                 int heads, int64_t n);
// y = RMSNorm(x; w[n]) * SiLU(z) per head; x, z, y [rows, heads * n] with strides: the gated norm
// of Gated DeltaNet (norm first, then gate).
void GatedRmsNormHeads(const KernelContext& ctx, const float* x, int64_t ldx, const float* z,
                       int64_t ldz, const float* w, float eps, int rows, int heads, int64_t n,
                       float* y, int64_t ldy);
// h[r, i] = SiLU(gate_up[r, i]) * gate_up[r, n + i]; gate_up [rows, ld], h [rows, n] contiguous.
void SwiGluRows(const KernelContext& ctx, const float* gate_up, int64_t ld, int rows, int64_t n,
                float* h);
// x += y, both [count].
void AddRows(const KernelContext& ctx, float* x, const float* y, int64_t count);
// x[r, i] += bias[i]; x [rows, ldx], bias [n].
void AddBias(const KernelContext& ctx, float* x, int64_t ldx, const float* bias, int rows,
             int64_t n);
// x *= sigmoid(gate) element-wise over n per row (attention output gate).
void SigmoidGateRows(const KernelContext& ctx, float* x, int64_t ldx, const float* gate,
                     int64_t ldgate, int rows, int64_t n);
// g[r, h] = exp(a_neg[h] * softplus(a[r, h] + dt_bias[h])); beta[r, h] = sigmoid(b[r, h]); a_neg =
// -exp(A_log). All [rows, heads].
void DeltaGates(const KernelContext& ctx, const float* a, int64_t lda, const float* b, int64_t ldb,
                const float* a_neg, const float* dt_bias, int rows, int heads, float* g,
                float* beta);

// Scalars, the definition the vector forms equal in bits. |relative error| bounds are stated in
// vector_math.h beside the polynomials.
float ExpF(float x);
float SigmoidF(float x);
float SiluF(float x);
float SoftplusF(float x);

}  // namespace cairn
