// Row-wise operations: norms, activations, element-wise glue. One definition for every level.
//
// Reductions inside a row run over 16 virtual lanes: lane j sums elements j, j + 16, j + 32, ... in
// order with fma (tail elements go to their lanes, missing ones leave the lane untouched), then
// lanes fold 8, 4, 2, 1 (lane j += lane j + 8, ...). Every level does exactly this. Exp, Sigmoid,
// SiLU, Softplus are our own polynomials (vector_math.h, which states their errors), the same
// operations in the same order on every level. NaN stays NaN on every level; only its payload is
// not defined. Threads: pure functions on the caller's spans; rows are split over ctx.pool. Nothing
// is allocated.
//
// Head layouts: head h of row r begins at x + r * ldx + h * head_stride and has n elements.
// head_stride is n where heads are contiguous, and 2 n for the q (or, from x + n, the gate) part of
// an attention projection whose heads are stored as q(n) gate(n).
#pragma once

#include <cstdint>

#include "kernels/kernel_context.h"

namespace cairn {

// y[r, i] = (x[r, i] * s) * w[i], s = 1 / sqrt(sum(x^2) / n + eps), r < rows; w [n]; x, y [rows, n]
// contiguous, may be the same. Source: RMSNorm, arXiv 1910.07467.
void RmsNormRows(const KernelContext& ctx, const float* x, const float* w, float eps, int rows,
                 int64_t n, float* y);
// One row, on the calling thread.
void RmsNorm(CpuLevel level, const float* x, const float* w, float eps, int64_t n, float* y);
// The same for each head in place (q/k norm); w [n].
void RmsNormHeads(const KernelContext& ctx, float* x, int64_t ldx, int64_t head_stride,
                  const float* w, float eps, int rows, int heads, int64_t n);
// x *= scale / sqrt(sum(x^2) + eps) for each head in place: the l2 norm of Gated DeltaNet's q and
// k.
void L2NormHeads(const KernelContext& ctx, float* x, int64_t ldx, int64_t head_stride, float eps,
                 float scale, int rows, int heads, int64_t n);
// y = RMSNorm(x; w) * SiLU(z) for each head (norm first, then gate): the gated norm of Gated
// DeltaNet. x, z, y [rows, heads * n] with row strides, heads contiguous; w [n]. y may be x or z.
void GatedRmsNormHeads(const KernelContext& ctx, const float* x, int64_t ldx, const float* z,
                       int64_t ldz, const float* w, float eps, int rows, int heads, int64_t n,
                       float* y, int64_t ldy);
// h[r, i] = SiLU(gate_up[r, i]) * gate_up[r, n + i]; gate_up [rows, ld], h [rows, n] contiguous.
void SwiGluRows(const KernelContext& ctx, const float* gate_up, int64_t ld, int rows, int64_t n,
                float* h);
// The same on the calling thread.
void SwiGlu(CpuLevel level, const float* gate_up, int64_t ld, int rows, int64_t n, float* h);
// x += y, both [count].
void AddRows(const KernelContext& ctx, float* x, const float* y, int64_t count);
// x[r, i] += bias[i]; x [rows, ldx], bias [n].
void AddBias(const KernelContext& ctx, float* x, int64_t ldx, const float* bias, int rows,
             int64_t n);
// x[r, h, i] *= sigmoid(gate[r, h, i]) (attention output gate); each side has its own strides.
void SigmoidGateHeads(const KernelContext& ctx, float* x, int64_t ldx, int64_t x_head_stride,
                      const float* gate, int64_t ldgate, int64_t gate_head_stride, int rows,
                      int heads, int64_t n);
// y[r, h, i] = x[r, h, i]; gathers strided heads, x and y do not overlap.
void CopyHeads(const KernelContext& ctx, const float* x, int64_t ldx, int64_t x_head_stride,
               int rows, int heads, int64_t n, float* y, int64_t ldy, int64_t y_head_stride);
// g[r, d] = exp(a_neg[d] * softplus(a[r, d] + dt_bias[d])), d < decays; beta[r, h] = sigmoid(b[r,
// h]); a_neg = -exp(A_log). a [rows, lda], b [rows, ldb]; a_neg, dt_bias [decays]; g [rows,
// decays], beta [rows, heads] contiguous.
void DeltaGates(const KernelContext& ctx, const float* a, int64_t lda, const float* b, int64_t ldb,
                const float* a_neg, const float* dt_bias, int rows, int decays, int heads, float* g,
                float* beta);

// w[i] = Exp((min(x[i], the largest float) - max) * scale), +0 where x[i] is NaN; block_sums[b] =
// sum of w over elements 256 b .. 256 b + 255 by the 16-lane rule, [n / 256, up]. For sampling: one
// thread, one row.
inline constexpr int64_t kExpBlock = 256;
void ExpWeights(CpuLevel level, const float* x, int64_t n, float max, float scale, float* w,
                float* block_sums);

// One value each; equal in bits to a lane of the vector forms.
float ExpF(float x);
float LogF(float x);
float SigmoidF(float x);
float SiluF(float x);
float SoftplusF(float x);

}  // namespace cairn
