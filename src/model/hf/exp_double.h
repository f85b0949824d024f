// exp in double by our own code, for values changed at load (the same bits on every machine).
// Threads: pure function.
#pragma once

namespace cairn {

// Relative error below 1e-15; x is clamped to [-700, 700].
inline double ExpDouble(double x) {
  if (x != x) return x;
  x = x < -700 ? -700 : x > 700 ? 700 : x;
  // x = n ln 2 + r, |r| <= ln 2 / 2; ln 2 in two parts, the first exact in products with n.
  constexpr double kLog2e = 1.4426950408889634;
  constexpr double kLn2High = 6.93147180369123816490e-01;
  constexpr double kLn2Low = 1.90821492927058770002e-10;
  const int n = static_cast<int>(x * kLog2e + (x < 0 ? -0.5 : 0.5));
  const double r = (x - n * kLn2High) - n * kLn2Low;
  // Taylor: 0.3466^18 / 18! is 8e-25.
  double sum = 1;
  for (int i = 17; i >= 1; --i) sum = 1 + sum * r / i;
  double power = 1;
  const double base = n < 0 ? 0.5 : 2.0;
  for (int i = n < 0 ? -n : n; i > 0; --i) power *= base;
  return sum * power;
}

}  // namespace cairn
