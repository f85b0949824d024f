#include "kernels/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

namespace cairn {
namespace {

RopeTable Table(RopePairs pairs, int rotary_dims, double theta) {
  return {pairs, rotary_dims, RopeInverseFrequencies(theta, rotary_dims), 1.0f};
}

struct AngleBuffers {
  std::vector<float> cos, sin;
};
AngleBuffers Angles(const KernelContext& ctx, const RopeTable& table,
                    const std::vector<int64_t>& positions) {
  AngleBuffers angles;
  angles.cos.resize(positions.size() * static_cast<size_t>(table.half()));
  angles.sin.resize(angles.cos.size());
  ComputeRopeAngles(ctx, table, positions, angles.cos.data(), angles.sin.data());
  return angles;
}

TEST(Rope, InverseFrequenciesMatchPow) {
  for (double theta : {10000.0, 500000.0, 1e6, 1e7, 3.7}) {
    for (int n : {2, 16, 64, 80, 128, 256}) {
      const std::vector<double> f = RopeInverseFrequencies(theta, n);
      ASSERT_EQ(f.size(), static_cast<size_t>(n) / 2);
      EXPECT_EQ(f[0], 1.0);
      for (int i = 0; i < n / 2; ++i) {
        const double want = std::pow(theta, -2.0 * i / n);
        ASSERT_NEAR(f[static_cast<size_t>(i)], want, 1e-14 * want);
      }
    }
  }
}

// Within 1 ulp of the exact cosine of the double product; libm's long double functions reduce
// exactly, so they stand for the exact value.
TEST(Rope, AnglesAreExactToAnUlp) {
  ThreadPool pool(2);
  const KernelContext ctx = {DetectCpuLevel(), &pool};
  std::mt19937_64 random(4);
  std::vector<int64_t> positions = {0, 1, 2, 3, 1000, 262143, 1 << 20, (1 << 22) - 1, 1 << 22};
  for (int i = 0; i < 3000; ++i) positions.push_back(static_cast<int64_t>(random() >> 42));
  const RopeTable table = Table(RopePairs::kHalfSplit, 64, 10000.0);
  const AngleBuffers angles = Angles(ctx, table, positions);
  for (size_t r = 0; r < positions.size(); ++r) {
    for (size_t i = 0; i < 32; ++i) {
      const double angle = static_cast<double>(positions[r]) * table.inv_freq[i];
      for (auto [got, want] :
           {std::pair{angles.cos[r * 32 + i], std::cos(static_cast<long double>(angle))},
            std::pair{angles.sin[r * 32 + i], std::sin(static_cast<long double>(angle))}}) {
        const float rounded = static_cast<float>(want);
        const float ulp = std::nextafter(std::abs(rounded), INFINITY) - std::abs(rounded);
        ASSERT_LE(std::abs(got - want), 0.5001L * ulp) << positions[r] << " " << i;
      }
    }
  }
}

TEST(Rope, MagnitudeScalesBothSides) {
  ThreadPool pool(1);
  const KernelContext ctx = {CpuLevel::kScalar, &pool};
  RopeTable table = Table(RopePairs::kHalfSplit, 8, 100.0);
  table.magnitude = 1.5f;
  const AngleBuffers angles = Angles(ctx, table, {7});
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_FLOAT_EQ(angles.cos[i], static_cast<float>(1.5 * std::cos(7 * table.inv_freq[i])));
    EXPECT_FLOAT_EQ(angles.sin[i], static_cast<float>(1.5 * std::sin(7 * table.inv_freq[i])));
  }
}

TEST(Rope, EveryLevelThreadCountAndSplitGivesTheSameBits) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (RopePairs pairs : {RopePairs::kHalfSplit, RopePairs::kInterleaved}) {
    for (int rotary : {2, 6, 16, 22, 32, 34, 64, 128}) {
      const int head_dim = rotary + rotary / 2;
      const int heads = 3, rows = 150;
      const int64_t head_stride = 2 * head_dim, ld = heads * head_stride + 5;
      const RopeTable table = Table(pairs, rotary, 10000.0);
      std::vector<float> x(static_cast<size_t>(rows * ld));
      for (float& v : x) v = normal(random);
      std::vector<int64_t> positions(rows);
      for (int64_t& p : positions) p = static_cast<int64_t>(random() % 100000);

      std::vector<float> want = x;  // the formula, one value at a time
      ThreadPool one(1);
      const AngleBuffers angles = Angles({CpuLevel::kScalar, &one}, table, positions);
      for (int r = 0; r < rows; ++r) {
        for (int h = 0; h < heads; ++h) {
          float* head = want.data() + r * ld + h * head_stride;
          for (int i = 0; i < rotary / 2; ++i) {
            float& x0 = pairs == RopePairs::kHalfSplit ? head[i] : head[2 * i];
            float& x1 = pairs == RopePairs::kHalfSplit ? head[rotary / 2 + i] : head[2 * i + 1];
            const size_t a = static_cast<size_t>(r * (rotary / 2) + i);
            const float y0 = std::fma(-x1, angles.sin[a], x0 * angles.cos[a]);
            const float y1 = std::fma(x0, angles.sin[a], x1 * angles.cos[a]);
            x0 = y0, x1 = y1;
          }
        }
      }
      for (CpuLevel level : SupportedCpuLevels()) {
        for (int threads = 1; threads <= 4; ++threads) {
          ThreadPool pool(threads);
          const KernelContext ctx = {level, &pool};
          const AngleBuffers mine = Angles(ctx, table, positions);
          ASSERT_EQ(mine.cos, angles.cos);
          ASSERT_EQ(mine.sin, angles.sin);
          std::vector<float> got = x;
          ApplyRope(ctx, table, {mine.cos.data(), mine.sin.data()}, got.data(), ld, head_stride,
                    rows, heads);
          ASSERT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0)
              << CpuLevelName(level) << " rotary " << rotary;
        }
        ThreadPool pool(1);
        std::vector<float> alone = x;  // each row with its own angles
        for (int r = 0; r < rows; ++r) {
          const AngleBuffers row =
              Angles({level, &pool}, table, {positions[static_cast<size_t>(r)]});
          ApplyRope({level, &pool}, table, {row.cos.data(), row.sin.data()}, alone.data() + r * ld,
                    ld, head_stride, 1, heads);
        }
        ASSERT_EQ(alone, want);
      }
    }
  }
}

}  // namespace
}  // namespace cairn
