// Row-wise operations of Mamba2 models: the gated norm over groups of channels, and the multipliers
// on branches and columns. Reductions and functions are those of vector_ops.h: the same bits on
// every level.
//
// Threads: pure functions on the caller's spans; rows are split over ctx.pool. Nothing is
// allocated.
#pragma once

#include <cstdint>

#include "kernels/gated_ops_levels.h"
#include "kernels/kernel_context.h"

namespace cairn {

// out = the gate and the norm in the given order; the RMSNorm is over each of the `groups` groups
// of n channels, w [groups * n] (null with kNoNorm). out may be y or z.
void GateRows(const KernelContext& ctx, GateOrder order, const GatedRows& rows);

// x[i] = fma(scale, y[i], x[i]), both [count].
void AddScaledRows(const KernelContext& ctx, float* x, const float* y, float scale, int64_t count);

// x[r, i] *= scale[i]; x [rows, ldx], scale [n].
void ScaleColumns(const KernelContext& ctx, float* x, int64_t ldx, const float* scale, int rows,
                  int64_t n);

// x = max(x, 0)^2 for [rows, n] contiguous values.
void ReluSquareRows(const KernelContext& ctx, float* x, int rows, int64_t n);

}  // namespace cairn
