// The doubles behind rope.h: log and exp for the table, cos and sin for the angles. One file, no
// instruction set flags, plain IEEE operations: the same bits everywhere.
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "kernels/rope.h"
#include "kernels/row_ranges.h"

namespace cairn {
namespace {

constexpr double kLn2High = 0x1.62e42fee00000p-1;  // 32 bits, so that n * kLn2High is exact
constexpr double kLn2Low = 0x1.a39ef35793c76p-33;

// x = 2^e m, m in [sqrt(1/2), sqrt(2)); log m = 2 atanh(s), s = (m - 1) / (m + 1), |s| < 0.172: the
// first term left out is below 2^-60 of the sum.
double LogD(double x) {
  int e;
  double m = std::frexp(x, &e);
  if (m < 0.70710678118654752) {
    m *= 2;
    --e;
  }
  const double s = (m - 1) / (m + 1);
  const double z = s * s;
  double series = 0;
  for (int k = 12; k >= 1; --k) series = (series + 1.0 / (2 * k + 1)) * z;
  return e * kLn2High + (2 * s + (2 * s * series + e * kLn2Low));
}

// 2^n e^r, |r| <= ln 2 / 2; Taylor: r^15 / 15! < 2^-63.
double ExpD(double x) {
  const double n = std::floor(x / (kLn2High + kLn2Low) + 0.5);
  const double r = (x - n * kLn2High) - n * kLn2Low;
  double series = 1;
  for (int k = 14; k >= 1; --k) series = 1 + r / k * series;
  return std::ldexp(series, static_cast<int>(n));
}

// pi / 2 in parts of 31, 31 and 53 bits: the first two products with |k| < 2^22 are exact.
constexpr double kHalfPi1 = 0x1.921fb54400000p+0;
constexpr double kHalfPi2 = 0x1.0b4611a400000p-34;
constexpr double kHalfPi3 = 0x1.13198a2e03707p-65;
constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;
constexpr double kRoundMagic = 0x1.8p+52;

struct CosSin {
  double cos, sin;
};

// Taylor on |r| <= pi / 4: r^19 / 19! and r^18 / 18! are below 2^-58.
CosSin CosSinReduced(double r) {
  const double z = r * r;
  double s = 0;
  for (int k = 8; k >= 1; --k) s = (1 + s) * (-z / ((2 * k) * (2 * k + 1)));
  double c = 0;
  for (int k = 8; k >= 1; --k) c = (1 + c) * (-z / ((2 * k - 1) * (2 * k)));
  return {1 + c, r + r * s};
}

// |angle| <= 2^22. k = round(angle 2 / pi); angle - k pi / 2 loses nothing that a float could show.
CosSin CosSinD(double angle) {
  const double shifted = angle * kTwoOverPi + kRoundMagic;
  const double k = shifted - kRoundMagic;
  uint64_t bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  const double r = ((angle - k * kHalfPi1) - k * kHalfPi2) - k * kHalfPi3;
  const CosSin base = CosSinReduced(r);
  switch (bits & 3) {  // k modulo 4, two's complement
    case 0:
      return base;
    case 1:
      return {-base.sin, base.cos};
    case 2:
      return {-base.cos, -base.sin};
    default:
      return {base.sin, -base.cos};
  }
}

}  // namespace

double LogDouble(double x) { return LogD(x); }

std::vector<double> RopeInverseFrequencies(double theta, int rotary_dims) {
  CHECK(theta > 0 && rotary_dims > 0 && rotary_dims % 2 == 0);
  std::vector<double> inv_freq(static_cast<size_t>(rotary_dims) / 2);
  const double log_theta = LogD(theta);
  for (size_t i = 0; i < inv_freq.size(); ++i) {
    inv_freq[i] = ExpD(-(2.0 * static_cast<double>(i) / rotary_dims) * log_theta);
  }
  return inv_freq;
}

RopeAngles ComputeRopeAngles(const KernelContext& ctx, const RopeTable& table,
                             std::span<const int64_t> positions, float* cos, float* sin) {
  const int64_t half = table.half();
  CHECK(static_cast<int64_t>(table.inv_freq.size()) == half);
  // One pair of angles costs about as much as 64 elements of other row kernels.
  ForRowRanges(ctx, static_cast<int>(positions.size()), half * 64, [&](int begin, int end) {
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t i = 0; i < half; ++i) {
        const CosSin cs = CosSinD(static_cast<double>(positions[static_cast<size_t>(r)]) *
                                  table.inv_freq[static_cast<size_t>(i)]);
        cos[r * half + i] = static_cast<float>(cs.cos * table.magnitude);
        sin[r * half + i] = static_cast<float>(cs.sin * table.magnitude);
      }
    }
  });
  return {cos, sin};
}

}  // namespace cairn
