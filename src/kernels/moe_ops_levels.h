// The levels of moe_ops.h: one table of functions each.
#pragma once

#include <cstdint>

namespace cairn {

// One row of CombineExperts; shared may be null.
struct CombineRow {
  const float* y;
  const int32_t* slots;
  const float* weights;
  int used;
  int64_t n;
  const float* shared;
  const float* gate;  // or null
  float* out;
};

struct MoeOpsLevel {
  void (*softmax)(float* x, int64_t n);
  void (*sigmoid)(float* x, int64_t n);
  void (*combine)(const CombineRow& row);
  void (*geglu)(const float* gate_up, int64_t ld, int rows, int64_t n, float* h);
  void (*scale)(float* x, float scale, int64_t n);
};

extern const MoeOpsLevel kMoeOpsRef;
extern const MoeOpsLevel kMoeOpsAvx2;
extern const MoeOpsLevel kMoeOpsAvx512;

}  // namespace cairn
