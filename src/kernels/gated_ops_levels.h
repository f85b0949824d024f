// The levels of gated_ops.h, on rows that the caller has split.
#pragma once

#include <cstdint>

namespace cairn {

enum class GateOrder {
  kNoNorm,        // y * SiLU(z)
  kGateThenNorm,  // RMSNorm(y * SiLU(z)): Mamba2
  kNormThenGate,  // RMSNorm(y) * SiLU(z)
};

struct GatedRows {
  const float* y;  // [rows] at ldy, groups * n values
  int64_t ldy;
  const float* z;  // [rows] at ldz
  int64_t ldz;
  const float* w;  // [groups * n], or null without a norm
  float eps;
  int rows;
  int groups;
  int64_t n;
  float* out;  // [rows] at ldout
  int64_t ldout;
};

struct GatedOpsLevel {
  void (*gate)(GateOrder order, const GatedRows& rows);
  void (*add_scaled)(const float* y, float scale, int64_t count, float* x);
  void (*scale_columns)(const float* scale, int rows, int64_t n, float* x, int64_t ldx);
  void (*relu_square)(int64_t count, float* x);
};

extern const GatedOpsLevel kGatedOpsRef;
extern const GatedOpsLevel kGatedOpsAvx2;
extern const GatedOpsLevel kGatedOpsAvx512;

}  // namespace cairn
