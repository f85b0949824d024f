// Internal: the work on one panel of 32 columns, one function per instruction set. Plain structs
// only, shared with files compiled for one instruction set.
#pragma once

#include <cstdint>

#include "kernels/weight_type.h"

namespace cairn {

// y[0..rows, 0..columns] = x * panel^T. Row r of y starts at y + r * ldy.
struct PanelCall {
  WeightType type;
  const uint8_t* panel;  // 64-byte aligned
  int64_t k;
  int rows;
  int columns;                    // 1..32; the panel's other columns are zero weights, not stored
  const float* x;                 // [rows, k], float weights
  const int8_t* q;                // [rows, k], quantised weights
  const ActivationBlock* blocks;  // [rows, k / 32]
  float* y;
  int64_t ldy;
};

void MatMulPanelScalar(const PanelCall& call);        // any type
void MatMulPanelAvx2(const PanelCall& call);          // quantised types
void MatMulPanelAvx512(const PanelCall& call);        // quantised types
void MatMulAffinePanelAvx2(const PanelCall& call);    // affine types
void MatMulAffinePanelAvx512(const PanelCall& call);  // affine types
void MatMulFloatPanelAvx2(const PanelCall& call);     // F32, F16, BF16
void MatMulFloatPanelAvx512(const PanelCall& call);   // F32, F16, BF16

}  // namespace cairn
