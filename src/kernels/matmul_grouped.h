// Many small matmuls with one weight matrix each, as one parallel loop: the experts of a mixture.
// Rows of one expert lie together, so that a tile of its panels serves all of them.
//
// Threads: runs on ctx.pool; a task is some panels of one group. Nothing is allocated.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/matmul.h"

namespace cairn {

// Rows [row_begin, row_begin + row_count) of the input times w. Groups of a call share no row.
struct MatMulGroup {
  const PackedMatrix* w;
  int row_begin;
  int row_count;
};

// a [rows, k] -> y [rows, ldy], the first n values a row: each row is MatMul's, bit for bit. All
// matrices have one n and one k; rows in no group are left as they are. REQUIRES: a's int8 form if
// a matrix is quantised; y does not overlap a.
void GroupedMatMul(const KernelContext& ctx, const Activations& a,
                   std::span<const MatMulGroup> groups, float* y, int64_t ldy);

}  // namespace cairn
