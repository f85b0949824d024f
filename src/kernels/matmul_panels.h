// Part of a MatMul on the calling thread: what MatMul, GroupedMatMul and GluMatMul split their work
// into.
#pragma once

#include <cstdint>

#include "kernels/matmul.h"

namespace cairn {

struct MatMulRange {
  int64_t begin, end;
};

int64_t MatMulPanelCount(const PackedMatrix& w);

// Panels [panels) of w for rows [rows) of `a`; y is the whole output.
void RunMatMulPanels(CpuLevel level, const Activations& a, const PackedMatrix& w,
                     MatMulRange panels, MatMulRange rows, float* y, int64_t ldy);
// The same, to y [rows.end - rows.begin, ldy], the first of the panels at its first column.
// REQUIRES: the activations of the rows fit the L2 cache.
void RunMatMulPanelsAt(CpuLevel level, const Activations& a, const PackedMatrix& w,
                       MatMulRange panels, MatMulRange rows, float* y, int64_t ldy);

}  // namespace cairn
