// exp and log in double for the sampler: our own polynomials, so that a sampled token and a log
// probability have the same bits on every machine, whatever its libm. Plain operations only; the
// project compiles with -ffp-contract=off.
//
// Threads: pure functions.
#pragma once

#include <bit>
#include <cstdint>

namespace cairn {

// e^x for x <= 0; 0 below -708 (where the result leaves the normal doubles) and for NaN.
// |relative error| < 4e-16: x = k ln 2 + r with |r| <= ln 2 / 2, ln 2 in two parts, Taylor to r^13
// (r^14 / 14! < 5e-18).
inline double ExpOfNonPositive(double x) {
  constexpr double kLog2E = 1.4426950408889634;
  constexpr double kLn2High = 6.93147180369123816490e-01;  // 33 significant bits
  constexpr double kLn2Low = 1.90821492927058770002e-10;
  constexpr double kRound = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer
  const bool in_range = x >= -708.0;
  const double t = in_range ? x : 0.0;
  const double shifted = t * kLog2E + kRound;
  const double k = shifted - kRound;
  const double r = (t - k * kLn2High) - k * kLn2Low;
  double p = 1.0 / 6227020800.0;
  p = p * r + 1.0 / 479001600.0;
  p = p * r + 1.0 / 39916800.0;
  p = p * r + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  // The low bits of `shifted` hold k in two's complement: move them into the exponent field.
  const uint64_t scale_bits = (std::bit_cast<uint64_t>(shifted) + 1023) << 52;
  return in_range ? p * std::bit_cast<double>(scale_bits) : 0.0;
}

// Four values at a time, the same operations in the same order: the same bits in each lane.
using Double4 = double __attribute__((vector_size(32)));
using Int4 = int64_t __attribute__((vector_size(32)));

inline Double4 ExpOfNonPositive4(Double4 x) {
  constexpr double kRound = 6755399441055744.0;
  const Int4 in_range = x >= -708.0;
  const Double4 t = reinterpret_cast<Double4>(reinterpret_cast<Int4>(x) & in_range);
  const Double4 shifted = t * 1.4426950408889634 + kRound;
  const Double4 k = shifted - kRound;
  const Double4 r = (t - k * 6.93147180369123816490e-01) - k * 1.90821492927058770002e-10;
  Double4 p = r * (1.0 / 6227020800.0) + 1.0 / 479001600.0;
  p = p * r + 1.0 / 39916800.0;
  p = p * r + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  const Int4 scale_bits = (reinterpret_cast<Int4>(shifted) + 1023) << 52;
  const Double4 y = p * reinterpret_cast<Double4>(scale_bits);
  return reinterpret_cast<Double4>(reinterpret_cast<Int4>(y) & in_range);
}

// ln x for finite x > 0, normal. |relative error| < 1e-15: x = 2^k m, m in [sqrt(1/2), sqrt(2)),
// ln m = 2 atanh(s), s = (m - 1) / (m + 1), |s| < 0.172, series to s^25.
inline double LogOfPositive(double x) {
  constexpr double kLn2High = 6.93147180369123816490e-01;
  constexpr double kLn2Low = 1.90821492927058770002e-10;
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  int64_t exponent = static_cast<int64_t>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0x000fffffffffffffull) | 0x3ff0000000000000ull);
  if (m >= 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  const double s = (m - 1.0) / (m + 1.0);
  const double s2 = s * s;
  double p = 1.0 / 25.0;
  for (int n = 23; n >= 1; n -= 2) p = p * s2 + 1.0 / n;
  const double k = static_cast<double>(exponent);
  return k * kLn2High + (2.0 * s * p + k * kLn2Low);
}

}  // namespace cairn
