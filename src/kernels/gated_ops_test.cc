// Against plain loops over doubles, and in bits on every level and thread count.
#include "kernels/gated_ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

namespace cairn {
namespace {

using Floats = std::vector<float>;

bool SameBits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

Floats Random(std::mt19937& random, size_t count, float scale) {
  std::normal_distribution<float> normal(0.0f, scale);
  Floats f(count);
  for (float& v : f) v = normal(random);
  return f;
}

struct GateCase {
  int rows, groups;
  int64_t n;
};
constexpr GateCase kCases[] = {{1, 1, 64}, {3, 2, 48}, {5, 3, 7}, {70, 1, 1536}, {1, 8, 17}};
constexpr float kEps = 1e-5f;

double ExactSilu(double x) { return x / (1 + std::exp(-x)); }

Floats Exact(GateOrder order, const GateCase& c, const Floats& y, const Floats& z,
             const Floats& w) {
  Floats out(y.size());
  for (size_t begin = 0; begin < y.size(); begin += c.n) {
    std::vector<double> x(c.n);
    double squares = 0;
    for (int64_t i = 0; i < c.n; ++i) {
      x[i] = y[begin + i] * (order == GateOrder::kNormThenGate ? 1 : ExactSilu(z[begin + i]));
      squares += x[i] * x[i];
    }
    const double scale =
        order == GateOrder::kNoNorm ? 1 : 1 / std::sqrt(squares / static_cast<double>(c.n) + kEps);
    for (int64_t i = 0; i < c.n; ++i) {
      const size_t channel = (begin + i) % (c.groups * c.n);
      double value = x[i] * scale;
      if (order != GateOrder::kNoNorm) value *= w[channel];
      if (order == GateOrder::kNormThenGate) value *= ExactSilu(z[begin + i]);
      out[begin + i] = static_cast<float>(value);
    }
  }
  return out;
}

TEST(GatedOps, GateAndNormInEveryOrder) {
  std::mt19937 random(31);
  for (const GateCase& c : kCases) {
    const size_t count = static_cast<size_t>(c.rows) * c.groups * c.n;
    const Floats y = Random(random, count, 2.0f), z = Random(random, count, 2.0f);
    const Floats w = Random(random, c.groups * c.n, 1.0f);
    for (GateOrder order :
         {GateOrder::kNoNorm, GateOrder::kGateThenNorm, GateOrder::kNormThenGate}) {
      const Floats exact = Exact(order, c, y, z, w);
      Floats first;
      for (CpuLevel level : SupportedCpuLevels()) {
        for (int threads : {1, 3}) {
          ThreadPool pool(threads);
          Floats out = y;  // in place
          const int64_t ld = c.groups * c.n;
          GateRows({level, &pool}, order,
                   {out.data(), ld, z.data(), ld, w.data(), kEps, c.rows, c.groups, c.n, out.data(),
                    ld});
          if (first.empty()) first = out;
          EXPECT_TRUE(SameBits(out, first)) << CpuLevelName(level);
        }
      }
      // A dozen roundings, SiLU's 3.5 ulp: 16 x 2^-24 of the value.
      for (size_t i = 0; i < count; ++i)
        ASSERT_NEAR(first[i], exact[i], 1e-6 * std::abs(exact[i]) + 1e-9);
    }
  }
}

TEST(GatedOps, ElementWiseOperationsAreTheirFormulas) {
  std::mt19937 random(32);
  const int rows = 9;
  const int64_t n = 1937;
  const Floats x = Random(random, rows * n, 1.0f), y = Random(random, rows * n, 1.0f);
  const Floats scale = Random(random, n, 1.0f);
  Floats added = x, scaled = x, squared = x;
  for (size_t i = 0; i < x.size(); ++i) {
    added[i] = std::fma(0.246f, y[i], x[i]);
    scaled[i] = x[i] * scale[i % n];
    squared[i] = x[i] > 0 ? x[i] * x[i] : 0.0f;
  }
  for (CpuLevel level : SupportedCpuLevels()) {
    for (int threads : {1, 4}) {
      ThreadPool pool(threads);
      const KernelContext ctx = {level, &pool};
      Floats got = x;
      AddScaledRows(ctx, got.data(), y.data(), 0.246f, rows * n);
      EXPECT_TRUE(SameBits(got, added));
      got = x;
      ScaleColumns(ctx, got.data(), n, scale.data(), rows, n);
      EXPECT_TRUE(SameBits(got, scaled));
      got = x;
      ReluSquareRows(ctx, got.data(), rows, n);
      EXPECT_TRUE(SameBits(got, squared));
    }
  }
}

TEST(GatedOps, NotANumberStays) {
  for (CpuLevel level : SupportedCpuLevels()) {
    ThreadPool pool(1);
    float x[] = {NAN, -INFINITY, 2.0f};
    ReluSquareRows({level, &pool}, x, 1, 3);
    EXPECT_TRUE(std::isnan(x[0]));
    EXPECT_EQ(x[1], 0.0f);
    EXPECT_EQ(x[2], 4.0f);
  }
}

}  // namespace
}  // namespace cairn
