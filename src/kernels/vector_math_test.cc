// The operations of simd16.h and vector_math.h: equal in bits on every level, and the functions
// within the error that vector_math.h states.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/kernel_context.h"
#include "kernels/simd16_probe.h"

namespace cairn {
namespace {

const SimdProbe& Probe(CpuLevel level) {
  switch (level) {
    case CpuLevel::kScalar:
      return kSimdProbeRef;
    case CpuLevel::kAvx2:
      return kSimdProbeAvx2;
    case CpuLevel::kAvx512:
      return kSimdProbeAvx512;
  }
  return kSimdProbeRef;
}

float FromBits(uint32_t bits) {
  float f;
  std::memcpy(&f, &bits, sizeof f);
  return f;
}

uint32_t Bits(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, sizeof bits);
  return bits;
}

// Equal bits, or both NaN (payloads are not promised).
bool Same(float a, float b) { return Bits(a) == Bits(b) || (std::isnan(a) && std::isnan(b)); }

// Floats of every exponent and both signs (a step prime to 2^32 through the bit patterns), and the
// special values.
std::vector<float> Grid(uint32_t step) {
  std::vector<float> grid = {0.0f, -0.0f, 1.0f, -1.0f, 0.5f, 65504.0f, 65519.9f, 65520.0f, 7e4f};
  for (float f : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::max(),
                  std::numeric_limits<float>::min(), std::numeric_limits<float>::denorm_min(),
                  std::numeric_limits<float>::quiet_NaN()}) {
    grid.push_back(f);
    grid.push_back(-f);
  }
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += step) {
    grid.push_back(FromBits(static_cast<uint32_t>(bits)));
  }
  return grid;
}

// |got - want| in units of the last place of want as a float (subnormal spacing at the bottom).
double UlpError(float got, double want) {
  if (std::isnan(want)) return std::isnan(got) ? 0 : 1e30;
  if (static_cast<double>(got) == want || got == static_cast<float>(want)) return 0.5;
  if (std::isinf(want) || std::isinf(got)) return 1e30;
  int exponent;
  std::frexp(want, &exponent);
  return std::abs(static_cast<double>(got) - want) / std::ldexp(1.0, std::max(exponent - 24, -149));
}

struct FunctionCase {
  const char* name;
  UnaryProbe op;
  double (*exact)(double);
  double ulp_max;
  float from;  // the bound holds for x >= from
};

double ExactSigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
double ExactSilu(double x) { return x == -INFINITY ? -0.0 : x / (1.0 + std::exp(-x)); }
double ExactSoftplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }

const FunctionCase kFunctions[] = {
    {"Exp", UnaryProbe::kExp, [](double x) { return std::exp(x); }, 1.0, -INFINITY},
    {"Log", UnaryProbe::kLog, [](double x) { return std::log(x); }, 1.0, -INFINITY},
    {"Sigmoid", UnaryProbe::kSigmoid, ExactSigmoid, 2.5, -INFINITY},
    {"Silu", UnaryProbe::kSilu, ExactSilu, 3.5, -87.0f},
    {"Softplus", UnaryProbe::kSoftplus, ExactSoftplus, 3.0, -INFINITY},
};

TEST(VectorMath, FunctionsAreWithinTheStatedError) {
  const std::vector<float> x = Grid(1021);
  std::vector<float> y(x.size());
  for (const FunctionCase& f : kFunctions) {
    Probe(DetectCpuLevel()).unary(f.op, x.data(), static_cast<int64_t>(x.size()), y.data());
    double worst = 0;
    float worst_x = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      if (x[i] < f.from) {
        ASSERT_LT(std::abs(y[i] - f.exact(x[i])), 2e-43) << f.name << " " << x[i];
        continue;
      }
      const double error = UlpError(y[i], f.exact(x[i]));
      if (error > worst) worst = error, worst_x = x[i];
    }
    EXPECT_LE(worst, f.ulp_max) << f.name << " at " << worst_x;
  }
}

TEST(VectorMath, SpecialValues) {
  const float inf = std::numeric_limits<float>::infinity();
  struct Case {
    UnaryProbe op;
    float x, want;
  };
  const Case cases[] = {
      {UnaryProbe::kExp, -inf, 0.0f},
      {UnaryProbe::kExp, inf, inf},
      {UnaryProbe::kExp, 0.0f, 1.0f},
      {UnaryProbe::kExp, -0.0f, 1.0f},
      {UnaryProbe::kExp, -1e30f, 0.0f},
      {UnaryProbe::kExp, -104.0f, 0.0f},
      {UnaryProbe::kExp, 88.75f, inf},
      {UnaryProbe::kExp, 1e30f, inf},
      {UnaryProbe::kLog, 0.0f, -inf},
      {UnaryProbe::kLog, -0.0f, -inf},
      {UnaryProbe::kLog, 1.0f, 0.0f},
      {UnaryProbe::kLog, inf, inf},
      {UnaryProbe::kSigmoid, -inf, 0.0f},
      {UnaryProbe::kSigmoid, inf, 1.0f},
      {UnaryProbe::kSigmoid, 0.0f, 0.5f},
      {UnaryProbe::kSilu, -inf, -0.0f},
      {UnaryProbe::kSilu, inf, inf},
      {UnaryProbe::kSilu, -0.0f, -0.0f},
      {UnaryProbe::kSoftplus, -inf, 0.0f},
      {UnaryProbe::kSoftplus, inf, inf},
      {UnaryProbe::kThroughHalf, inf, 65504.0f},
      {UnaryProbe::kThroughHalf, -1e30f, -65504.0f},
  };
  for (CpuLevel level : SupportedCpuLevels()) {
    for (const Case& c : cases) {
      float y;
      Probe(level).unary(c.op, &c.x, 1, &y);
      EXPECT_EQ(Bits(y), Bits(c.want)) << CpuLevelName(level) << " op " << static_cast<int>(c.op)
                                       << " of " << c.x << " is " << y;
    }
    for (UnaryProbe op : {UnaryProbe::kExp, UnaryProbe::kLog, UnaryProbe::kSigmoid,
                          UnaryProbe::kSilu, UnaryProbe::kSoftplus, UnaryProbe::kThroughHalf}) {
      const float nan = std::numeric_limits<float>::quiet_NaN();
      float y;
      Probe(level).unary(op, &nan, 1, &y);
      EXPECT_TRUE(std::isnan(y));
    }
    const float negative = -1.0f;
    float y;
    Probe(level).unary(UnaryProbe::kLog, &negative, 1, &y);
    EXPECT_TRUE(std::isnan(y));
  }
}

TEST(VectorMath, UnaryOperationsAreEqualOnEveryLevel) {
  std::vector<float> x = Grid(16411);
  x.resize(x.size() / 16 * 16 + 11);  // ends in a tail
  const auto n = static_cast<int64_t>(x.size());
  std::vector<float> want(x.size()), got(x.size());
  for (int op = 0; op <= static_cast<int>(UnaryProbe::kReduceMax); ++op) {
    const auto probe = static_cast<UnaryProbe>(op);
    std::vector<float> in = x;
    if (probe == UnaryProbe::kRoundToInt) {  // its domain
      for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(i % 8191) * 0.25f - 1000;
    }
    kSimdProbeRef.unary(probe, in.data(), n, want.data());
    for (CpuLevel level : SupportedCpuLevels()) {
      Probe(level).unary(probe, in.data(), n, got.data());
      for (size_t i = 0; i < x.size(); ++i) {
        ASSERT_TRUE(Same(got[i], want[i])) << CpuLevelName(level) << " op " << op << " of " << in[i]
                                           << ": " << got[i] << ", " << want[i];
      }
    }
  }
}

TEST(VectorMath, BinaryOperationsAreEqualOnEveryLevel) {
  std::vector<float> a = Grid(65537);
  a.resize(a.size() / 16 * 16 + 7);
  std::vector<float> b = a, c = a;
  std::mt19937 random(7);
  std::shuffle(b.begin(), b.end(), random);
  std::shuffle(c.begin(), c.end(), random);
  for (size_t i = 0; i < 64; ++i) b[i] = a[i];  // equal operands, also zeros of either sign
  const auto n = static_cast<int64_t>(a.size());
  for (int op = 0; op <= static_cast<int>(BinaryProbe::kFmaTail); ++op) {
    std::vector<float> want = c;
    kSimdProbeRef.binary(static_cast<BinaryProbe>(op), a.data(), b.data(), n, want.data());
    for (CpuLevel level : SupportedCpuLevels()) {
      std::vector<float> got = c;
      Probe(level).binary(static_cast<BinaryProbe>(op), a.data(), b.data(), n, got.data());
      for (size_t i = 0; i < a.size(); ++i) {
        ASSERT_TRUE(Same(got[i], want[i])) << CpuLevelName(level) << " op " << op << " of " << a[i]
                                           << ", " << b[i] << ", " << c[i];
      }
    }
  }
}

TEST(VectorMath, HalfConversionsAreEqualOnEveryLevelAndRoundTrip) {
  std::vector<uint16_t> halves(65536);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i);
  const std::vector<float> x = Grid(4099);
  std::vector<uint16_t> want_half(x.size());
  kSimdProbeRef.float_to_half(x.data(), static_cast<int64_t>(x.size()), want_half.data());
  for (CpuLevel level : SupportedCpuLevels()) {
    std::vector<float> wide(halves.size());
    Probe(level).half_to_float(halves.data(), 65536, wide.data());
    std::vector<uint16_t> back(halves.size());
    Probe(level).float_to_half(wide.data(), 65536, back.data());
    for (size_t i = 0; i < halves.size(); ++i) {
      const uint16_t h = halves[i];
      const bool nan = (h & 0x7fff) > 0x7c00;
      EXPECT_EQ(std::isnan(wide[i]), nan);
      if (nan) continue;
      const float magnitude =
          (h & 0x7c00) == 0 ? std::ldexp(static_cast<float>(h & 1023), -24)
          : (h & 0x7fff) == 0x7c00
              ? INFINITY
              : std::ldexp(static_cast<float>((h & 1023) + 1024), ((h >> 10) & 31) - 25);
      ASSERT_EQ(wide[i], (h & 0x8000) != 0 ? -magnitude : magnitude);
      ASSERT_EQ(std::signbit(wide[i]), (h & 0x8000) != 0);
      ASSERT_EQ(back[i], std::isinf(wide[i]) ? h - 1 : h);  // infinity saturates
    }
    std::vector<uint16_t> got_half(x.size());
    Probe(level).float_to_half(x.data(), static_cast<int64_t>(x.size()), got_half.data());
    for (size_t i = 0; i < x.size(); ++i) {
      if (std::isnan(x[i])) continue;
      ASSERT_EQ(got_half[i], want_half[i]) << CpuLevelName(level) << " " << x[i];
    }
  }
}

TEST(VectorMath, TailsTouchOnlyTheirElements) {
  const float x[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  for (CpuLevel level : SupportedCpuLevels()) {
    for (int n = 0; n <= 16; ++n) {
      std::vector<float> in(static_cast<size_t>(n), 2.0f), out(32, 9.0f);
      Probe(level).unary(UnaryProbe::kSqrt, in.data(), n, out.data());
      for (int i = 0; i < 32; ++i) EXPECT_EQ(out[i], i < n ? std::sqrt(2.0f) : 9.0f);
    }
    for (int n = 0; n <= 8; ++n) {
      float y[16];
      Probe(level).twice(x, n, y);
      for (int i = 0; i < 16; ++i) EXPECT_EQ(y[i], i / 2 < n ? x[i / 2] : 0.0f);
    }
  }
}

}  // namespace
}  // namespace cairn
