// log in double for the sampler: our own polynomial, so that a log probability has the same bits on
// every machine, whatever its libm. Plain operations only; the project compiles with
// -ffp-contract=off.
//
// Threads: pure functions.
#pragma once

#include <bit>
#include <cstdint>

namespace cairn {

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
