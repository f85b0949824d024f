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
