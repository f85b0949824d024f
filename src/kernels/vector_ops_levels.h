// The levels of vector_ops.h: one table of functions each, on rows that the caller has split.
#pragma once

#include <cstdint>

namespace cairn {

// Heads of rows: head h of row r begins at data + r * row_stride + h * head_stride.
struct HeadsIn {
  const float* data;
  int64_t row_stride, head_stride;
};
struct HeadsOut {
  float* data;
  int64_t row_stride, head_stride;
};
struct HeadsSize {
  int rows, heads;
  int64_t n;
};

struct VectorOpsLevel {
  void (*rms_norm)(HeadsIn x, const float* w, float eps, HeadsSize size, HeadsOut y);
  void (*l2_norm)(HeadsIn x, float eps, float scale, HeadsSize size, HeadsOut y);
  void (*gated_rms_norm)(HeadsIn x, HeadsIn z, const float* w, float eps, HeadsSize size,
                         HeadsOut y);
  void (*swiglu)(const float* gate_up, int64_t ld, int rows, int64_t n, float* h);
  void (*add)(const float* y, int64_t count, float* x);
  void (*add_bias)(const float* bias, int rows, int64_t n, float* x, int64_t ldx);
  void (*sigmoid_gate)(HeadsIn gate, HeadsSize size, HeadsOut x);
  // a, b [rows] at strides lda, ldb; g [rows, decays], beta [rows, heads].
  void (*delta_gates)(const float* a, int64_t lda, const float* b, int64_t ldb, const float* a_neg,
                      const float* dt_bias, int rows, int decays, int heads, float* g, float* beta);
  void (*exp_weights)(const float* x, int64_t n, float max, float scale, float* w,
                      float* block_sums);
};

extern const VectorOpsLevel kVectorOpsRef;
extern const VectorOpsLevel kVectorOpsAvx2;
extern const VectorOpsLevel kVectorOpsAvx512;

}  // namespace cairn
