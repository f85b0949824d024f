// RMSNorm and the int8 form of its result in one pass: each row is quantised while the cache still
// has it.
//
// Threads: rows are split over ctx.pool. Nothing is allocated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/matmul.h"

namespace cairn {

// y [rows, k] = RmsNormRows(x [rows, k], w [k], eps) and, in `workspace`, PrepareActivations of it,
// both bit for bit; x and y are contiguous and may be the same. The result views y and `workspace`.
// REQUIRES: k % 32 == 0; `workspace` as for PrepareActivations.
Activations NormActivations(const KernelContext& ctx, const float* x, const float* w, float eps,
                            int rows, int64_t k, float* y, std::span<std::byte> workspace);

}  // namespace cairn
