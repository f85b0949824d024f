// Part of a MatMul on the calling thread: what MatMul, GroupedMatMul and GluMatMul split their work
// into. Threads: pure functions; nothing is allocated.
#pragma once

#include <cstdint>

#include "kernels/matmul.h"

namespace cairn {

struct MatMulRange {
  int64_t begin, end;  // [begin, end)
};

// Panels of 32 columns, the last one perhaps not full.
int64_t MatMulPanelCount(const PackedMatrix& w);

// Panels [panels) of w for rows [rows) of `a`; y [a.rows, ldy] is the whole output.
void RunMatMulPanels(CpuLevel level, const Activations& a, const PackedMatrix& w,
                     MatMulRange panels, MatMulRange rows, float* y, int64_t ldy);
// The same, to y [rows.end - rows.begin, ldy], the first of the panels at its first column.
// REQUIRES: the activations of the rows fit the L2 cache.
void RunMatMulPanelsAt(CpuLevel level, const Activations& a, const PackedMatrix& w,
                       MatMulRange panels, MatMulRange rows, float* y, int64_t ldy);

}  // namespace cairn
