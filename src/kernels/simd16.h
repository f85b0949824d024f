// Sixteen float lanes, one interface on every level: one zmm with AVX-512, two ymm with AVX2, an
// array otherwise, chosen by the flags the including file is compiled with. A kernel is written
// once on it (x_impl.h) and included by x_avx512.cc, x_avx2.cc and x_ref.cc, so the levels do the
// same operations in the same order and are equal in bits by construction.
//
// What every level promises (a, b, c lanes; n in [0, 16] counts lanes from lane 0):
//   Zero(), Set(x), Load(p), Store(p, a)      no alignment needed
//   LoadN(p, n), StoreN(p, a, n)              touch n elements only; lanes >= n load as +0
//   Add Sub Mul Div Sqrt                      IEEE, rounded once
//   Fma(a, b, c) = a * b + c                  rounded once
//   Fnma(a, b, c) = c - a * b                 rounded once
//   FmaN(a, b, c, n)                          Fma in lanes < n, c in the others
//   Min(a, b) = a < b ? a : b                 so b where either is NaN
//   Max(a, b) = a > b ? a : b                 likewise
//   Abs Neg                                   sign bit only, NaN too
//   Less(a, b), Select(m, a, b), FirstLanes(n)
//                                             Less is false on NaN; Select takes a where m is set
//   ScaleByPow2(a, n)                         a * 2^n, n integral in [-252, 252], rounded once
//                                             when |a| in [0.5, 2); NaN stays NaN
//   RoundToInt(a)                             nearest, ties to even; |a| <= 2^22
//   ToFloat(i), AsInt(a), AsFloat(i)          conversion; bits
//   SetInt AddInt SubInt AndInt ShiftLeft<k> ShiftRight<k> (arithmetic)
//                                             wrap around
//   LoadHalf(p), LoadHalfN(p, n)              f16 -> f32, exact
//   StoreHalf(p, a), StoreHalfN(p, a, n)      nearest even, saturates to +-65504, NaN stays NaN
//   SwapPairs(a)                              lanes 1 0 3 2 5 4 ...
//   LoadTwiceN(p, n)                          lanes 2i and 2i + 1 = p[i], i < n <= 8
//   ReduceAdd(a), ReduceMax(a)                lane j op= lane j + 8, then 4, 2, 1; lane 0
//   ForLanes(n, fn), Dot(a, b, n)             rows of any length
// NaN payloads are not promised. Everything is in an anonymous namespace and always inlined: no
// code of one level can reach another object (docs/exactness.md).
#pragma once

#define CAIRN_SIMD inline __attribute__((always_inline))

#if defined(__AVX512F__)
#include "kernels/simd16_avx512.h"
#elif defined(__AVX2__)
#include "kernels/simd16_avx2.h"
#else
#include "kernels/simd16_scalar.h"
#endif

namespace cairn {
namespace {

// The two kinds of lane groups of a row: whole ones, and its tail.
struct AllLanes {
  CAIRN_SIMD F32x16 load(const float* p) const { return Load(p); }
  CAIRN_SIMD void store(float* p, F32x16 a) const { Store(p, a); }
  CAIRN_SIMD F32x16 fma(F32x16 a, F32x16 b, F32x16 c) const { return Fma(a, b, c); }
};
struct TailLanes {
  int n;
  CAIRN_SIMD F32x16 load(const float* p) const { return LoadN(p, n); }
  CAIRN_SIMD void store(float* p, F32x16 a) const { StoreN(p, a, n); }
  CAIRN_SIMD F32x16 fma(F32x16 a, F32x16 b, F32x16 c) const { return FmaN(a, b, c, n); }
};

// fn(lanes, i) for i = 0, 16, 32, ... < n: one body for whole groups and the tail.
template <typename Fn>
CAIRN_SIMD void ForLanes(int64_t n, Fn fn) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) fn(AllLanes{}, i);
  if (i < n) fn(TailLanes{static_cast<int>(n - i)}, i);
}

// sum a[i] * b[i] by the 16-lane rule (vector_ops.h).
CAIRN_SIMD float Dot(const float* a, const float* b, int64_t n) {
  F32x16 sum = Zero();
  ForLanes(n, [&](auto lanes, int64_t i) {
    sum = lanes.fma(lanes.load(a + i), lanes.load(b + i), sum);
  });
  return ReduceAdd(sum);
}

}  // namespace
}  // namespace cairn
