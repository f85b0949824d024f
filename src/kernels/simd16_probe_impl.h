// The body of simd16_probe_{ref,avx2,avx512}.cc.
#pragma once

#include "kernels/simd16_probe.h"
#include "kernels/vector_math.h"

namespace cairn {
namespace {

CAIRN_SIMD F32x16 Unary(UnaryProbe op, F32x16 x) {
  switch (op) {
    case UnaryProbe::kExp:
      return Exp(x);
    case UnaryProbe::kLog:
      return Log(x);
    case UnaryProbe::kSigmoid:
      return Sigmoid(x);
    case UnaryProbe::kSilu:
      return Silu(x);
    case UnaryProbe::kSoftplus:
      return Softplus(x);
    case UnaryProbe::kSqrt:
      return Sqrt(x);
    case UnaryProbe::kAbs:
      return Abs(x);
    case UnaryProbe::kNeg:
      return Neg(x);
    case UnaryProbe::kRoundToInt:
      return ToFloat(RoundToInt(x));
    case UnaryProbe::kSwapPairs:
      return SwapPairs(x);
    case UnaryProbe::kReduceAdd:
      return Set(ReduceAdd(x));
    case UnaryProbe::kReduceMax:
      return Set(ReduceMax(x));
    case UnaryProbe::kThroughHalf: {
      uint16_t half[16];
      StoreHalf(half, x);
      return LoadHalf(half);
    }
  }
  return x;
}

CAIRN_SIMD F32x16 Binary(BinaryProbe op, F32x16 a, F32x16 b, F32x16 c, int n) {
  switch (op) {
    case BinaryProbe::kAdd:
      return Add(a, b);
    case BinaryProbe::kSub:
      return Sub(a, b);
    case BinaryProbe::kMul:
      return Mul(a, b);
    case BinaryProbe::kDiv:
      return Div(a, b);
    case BinaryProbe::kMin:
      return Min(a, b);
    case BinaryProbe::kMax:
      return Max(a, b);
    case BinaryProbe::kSelectLess:
      return Select(Less(a, b), a, c);
    case BinaryProbe::kFma:
      return Fma(a, b, c);
    case BinaryProbe::kFnma:
      return Fnma(a, b, c);
    case BinaryProbe::kFmaTail:
      return FmaN(a, b, c, n / 2);
  }
  return a;
}

void ProbeUnary(UnaryProbe op, const float* x, int64_t n, float* y) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) Store(y + i, Unary(op, Load(x + i)));
  const int tail = static_cast<int>(n - i);
  StoreN(y + i, Unary(op, LoadN(x + i, tail)), tail);
}

void ProbeBinary(BinaryProbe op, const float* a, const float* b, int64_t n, float* y) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) Store(y + i, Binary(op, Load(a + i), Load(b + i), Load(y + i), 16));
  const int tail = static_cast<int>(n - i);
  StoreN(y + i, Binary(op, LoadN(a + i, tail), LoadN(b + i, tail), LoadN(y + i, tail), tail), tail);
}

void ProbeTwice(const float* x, int n, float* y) { Store(y, LoadTwiceN(x, n)); }

void ProbeHalfToFloat(const uint16_t* x, int64_t n, float* y) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) Store(y + i, LoadHalf(x + i));
  StoreN(y + i, LoadHalfN(x + i, static_cast<int>(n - i)), static_cast<int>(n - i));
}

void ProbeFloatToHalf(const float* x, int64_t n, uint16_t* y) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) StoreHalf(y + i, Load(x + i));
  const int tail = static_cast<int>(n - i);
  StoreHalfN(y + i, LoadN(x + i, tail), tail);
}

constexpr SimdProbe kProbe = {ProbeUnary, ProbeBinary, ProbeTwice, ProbeHalfToFloat,
                              ProbeFloatToHalf};

}  // namespace
}  // namespace cairn
