// Exp, Log, Log1pExp, Sigmoid, SiLU on the lanes of simd16.h: our own polynomials (minimax fits of
// these very forms), explicit fma, the same operations on every level.
//
// Bounds are against the exact value, in units of the last place of the result, and are checked by
// vector_math_test.cc over a dense grid of floats.
//   Exp       1 ulp, subnormal results too; Exp(-inf) = +0 and Exp(x) = +0 for x < -104,
//             Exp(x) = +inf for x > 88.73, Exp(+-0) = 1
//   Log       1 ulp, subnormal arguments too; Log(0) = -inf, Log(x < 0) = NaN, Log(inf) = inf
//   Sigmoid   2.5 ulp; Sigmoid(-inf) = +0, Sigmoid(inf) = 1
//   Silu      3.5 ulp for x >= -87 (below, the result is tiny: |error| < 2e-43);
//             Silu(-inf) = -0
//   Softplus  3 ulp; log(1 + e^x); Softplus(-inf) = +0, Softplus(inf) = inf
// NaN in, NaN out.
#pragma once

#include "kernels/simd16.h"

namespace cairn {
namespace {

// e^x = 2^n e^r, n = round(x / ln 2), |r| <= ln 2 / 2; e^r = 1 + r (1 + r P(r)).
template <typename F>
CAIRN_SIMD F Exp(F x) {
  x = Max(Like(x, -104.0f), Min(Like(x, 89.0f), x));  // in this order NaN passes
  const F magic = Like(x, 12582912.0f);               // 1.5 * 2^23: rounds to an integer
  const F n = Sub(Fma(x, Like(x, 0x1.715476p+0f), magic), magic);
  F r = Fnma(n, Like(x, 0x1.62e43p-1f), x);
  r = Fnma(n, Like(x, -0x1.05c61p-29f), r);
  F p = Like(x, 0x1.6a23c8p-10f);
  p = Fma(p, r, Like(x, 0x1.123a2p-7f));
  p = Fma(p, r, Like(x, 0x1.5558f4p-5f));
  p = Fma(p, r, Like(x, 0x1.555492p-3f));
  p = Fma(p, r, Like(x, 0x1.fffffcp-2f));
  p = Fma(p, r, Like(x, 1.0f));
  p = Fma(p, r, Like(x, 1.0f));
  return ScaleByPow2(p, n);
}

// x = 2^e m, m in [sqrt(1/2), sqrt(2)), f = m - 1, s = f / (2 + f), z = s^2:
// log m = f - (f^2 / 2 - s (f^2 / 2 + z P(z))), the form in which f, exact, carries the leading
// bits.
template <typename F>
CAIRN_SIMD F Log(F x) {
  const F zero = Like(x, 0.0f);
  const auto subnormal = Less(x, Like(x, 0x1p-126f));
  const F scaled = Select(subnormal, Mul(x, Like(x, 0x1p25f)), x);
  const auto bits = AsInt(scaled);
  // Subtracting the bits of sqrt(1/2) moves the exponent step from powers of two to there.
  const auto offset = SetInt(bits, 0x3f3504f3);
  const auto exponent = ShiftRight<23>(SubInt(bits, offset));
  const F m = AsFloat(SubInt(bits, ShiftLeft<23>(exponent)));
  const F e = Sub(ToFloat(exponent), Select(subnormal, Like(x, 25.0f), zero));
  const F f = Sub(m, Like(x, 1.0f));
  const F s = Div(f, Add(Like(x, 2.0f), f));
  const F z = Mul(s, s);
  F p = Like(x, 0x1.e3053ep-3f);
  p = Fma(p, z, Like(x, 0x1.24387ap-2f));
  p = Fma(p, z, Like(x, 0x1.999a7cp-2f));
  p = Fma(p, z, Like(x, 0x1.555554p-1f));
  const F half_square = Mul(Mul(Like(x, 0.5f), f), f);
  const F tail = Fma(s, Fma(p, z, half_square), Mul(e, Like(x, 0x1.7f7d1cp-20f)));
  const F y = Fma(e, Like(x, 0x1.62e4p-1f), Sub(f, Sub(half_square, tail)));  // e * hi is exact
  const F inf = Like(x, __builtin_inff());
  const F finite = Select(Less(x, inf), y, x);  // +inf and NaN as they are
  const F nan = Like(x, __builtin_nanf(""));
  return Select(Less(zero, x), finite,
                Select(Less(x, zero), nan, Select(Less(Neg(inf), x), Neg(inf), x)));
}

// log(1 + u), u in [0, 1]: 2 atanh(s), s = u / (2 + u), z = s^2 in [0, 1/9].
template <typename F>
CAIRN_SIMD F Log1pUnit(F u) {
  const F s = Div(u, Add(Like(u, 2.0f), u));
  const F z = Mul(s, s);
  F p = Like(u, 0x1.f1aed2p-3f);
  p = Fma(p, z, Like(u, 0x1.b6d6a8p-3f));
  p = Fma(p, z, Like(u, 0x1.250972p-2f));
  p = Fma(p, z, Like(u, 0x1.9996a8p-2f));
  p = Fma(p, z, Like(u, 0x1.555558p-1f));
  return Fma(Mul(s, z), p, Add(s, s));
}

template <typename F>
CAIRN_SIMD F Softplus(F x) {
  const F u = Exp(Neg(Abs(x)));
  return Add(Max(Like(x, 0.0f), x), Log1pUnit(u));
}

// With e = exp(-|x|): 1 / (1 + e) for x >= 0, e / (1 + e) below, so that nothing overflows.
template <typename F>
CAIRN_SIMD F Sigmoid(F x) {
  const F one = Like(x, 1.0f);
  const F e = Exp(Neg(Abs(x)));
  return Div(Select(Less(x, Like(x, 0.0f)), e, one), Add(one, e));
}

template <typename F>
CAIRN_SIMD F Silu(F x) {
  const F finite = Max(Like(x, -0x1.fffffep+127f), x);  // -inf * 0 would be NaN
  return Mul(finite, Sigmoid(x));
}

}  // namespace
}  // namespace cairn
