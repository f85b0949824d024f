// Lets a test run the operations of simd16.h and vector_math.h on one chosen level.
#pragma once

#include <cstdint>

namespace cairn {

enum class UnaryProbe {
  kExp,
  kLog,
  kSigmoid,
  kSilu,
  kSoftplus,
  kSqrt,
  kAbs,
  kNeg,
  kRoundToInt,
  kThroughHalf,
  kSwapPairs,
  kReduceAdd,
  kReduceMax,
};
enum class BinaryProbe { kAdd, kSub, kMul, kDiv, kMin, kMax, kSelectLess, kFma, kFnma, kFmaTail };

struct SimdProbe {
  // y[i] = op(x)[i] for groups of 16 lanes; the last group is a tail. Reductions write their value
  // to every lane of the group.
  void (*unary)(UnaryProbe op, const float* x, int64_t n, float* y);
  // Three-operand forms add to or subtract from c = y's old contents.
  void (*binary)(BinaryProbe op, const float* a, const float* b, int64_t n, float* y);
  // Lanes 2i and 2i + 1 of y = x[i], i < n <= 8.
  void (*twice)(const float* x, int n, float* y);
  void (*half_to_float)(const uint16_t* x, int64_t n, float* y);
  void (*float_to_half)(const float* x, int64_t n, uint16_t* y);
};

extern const SimdProbe kSimdProbeRef;
extern const SimdProbe kSimdProbeAvx2;
extern const SimdProbe kSimdProbeAvx512;

}  // namespace cairn
