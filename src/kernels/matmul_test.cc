#include "kernels/matmul.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace cairn {
namespace {

constexpr WeightType kTypes[] = {WeightType::kF32,
                                 WeightType::kF16,
                                 WeightType::kBF16,
                                 WeightType::kQ8_0,
                                 WeightType::kQ4_0,
                                 WeightType::kQ4_1,
                                 WeightType::kQ5_0,
                                 WeightType::kQ5_1,
                                 WeightType::kQ4_K,
                                 WeightType::kQ5_K,
                                 WeightType::kQ6_K,
                                 WeightType::kAffine4G32F16,
                                 WeightType::kAffine4G32BF16,
                                 WeightType::kAffine4G32F32,
                                 WeightType::kAffine4G64F16,
                                 WeightType::kAffine4G64BF16,
                                 WeightType::kAffine4G64F32,
                                 WeightType::kAffine4G128F16,
                                 WeightType::kAffine4G128BF16,
                                 WeightType::kAffine4G128F32,
                                 WeightType::kAffine8G32F16,
                                 WeightType::kAffine8G32BF16,
                                 WeightType::kAffine8G32F32,
                                 WeightType::kAffine8G64F16,
                                 WeightType::kAffine8G64BF16,
                                 WeightType::kAffine8G64F32,
                                 WeightType::kAffine8G128F16,
                                 WeightType::kAffine8G128BF16,
                                 WeightType::kAffine8G128F32};

float Uniform(std::mt19937& rng) { return static_cast<float>(rng()) * 0x1p-31f - 1.0f; }

void PutAffine(const AffineFormat& format, float value, std::byte* out) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if (format.scale == AffineScale::kF32) {
    std::memcpy(out, &bits, sizeof bits);
    return;
  }
  const uint16_t half =
      format.scale == AffineScale::kF16 ? FloatToHalf(value) : static_cast<uint16_t>(bits >> 16);
  std::memcpy(out, &half, sizeof half);
}

// n rows of random weights in file layout, f16 fields of moderate size.
std::vector<std::byte> RandomRows(WeightType type, int64_t n, int64_t k, std::mt19937& rng) {
  std::vector<std::byte> rows(static_cast<size_t>(n) * RowBytes(type, k));
  auto put = [&](size_t at, uint16_t v) { std::memcpy(&rows[at], &v, sizeof v); };
  if (!IsQuantized(type)) {
    for (int64_t i = 0; i < n * k; ++i) {
      const float f = Uniform(rng);
      const size_t at = static_cast<size_t>(i);
      if (type == WeightType::kF32) std::memcpy(&rows[4 * at], &f, sizeof f);
      if (type == WeightType::kF16) put(2 * at, FloatToHalf(f));
      if (type == WeightType::kBF16) {
        uint32_t bits;
        std::memcpy(&bits, &f, sizeof bits);
        put(2 * at, static_cast<uint16_t>(bits >> 16));
      }
    }
    return rows;
  }
  for (std::byte& b : rows) b = static_cast<std::byte>(rng());
  if (const auto affine = AffineFormatOf(type)) {
    for (size_t at = 0; at < rows.size(); at += BlockBytes(type)) {
      PutAffine(*affine, 0.4f / static_cast<float>(1 << affine->bits) * Uniform(rng), &rows[at]);
      PutAffine(*affine, 0.1f * Uniform(rng), &rows[at + affine->scale_bytes()]);
    }
    return rows;
  }
  const bool has_min = type == WeightType::kQ4_1 || type == WeightType::kQ5_1 ||
                       type == WeightType::kQ4_K || type == WeightType::kQ5_K;
  const size_t block = BlockBytes(type);
  for (size_t at = 0; at < rows.size(); at += block) {
    put(at + (type == WeightType::kQ6_K ? 208 : 0), FloatToHalf(0.1f * Uniform(rng)));
    if (has_min) put(at + 2, FloatToHalf(0.1f * Uniform(rng)));
  }
  return rows;
}

std::vector<float> RandomFloats(size_t count, std::mt19937& rng) {
  std::vector<float> x(count);
  for (float& v : x) v = 2.0f * Uniform(rng);
  return x;
}

PackedMatrix MustPack(WeightType type, int64_t n, int64_t k, std::span<const std::byte> rows) {
  auto m = PackedMatrix::Pack(type, n, k, rows);
  EXPECT_TRUE(m.ok()) << m.status().ToString();
  return std::move(m).value();
}

// x [rows, k] * w^T with row stride n + 3; checks that columns n.. stay untouched.
std::vector<float> Multiply(CpuLevel level, int threads, const PackedMatrix& w, const float* x,
                            int rows) {
  static constexpr float kUntouched = 12345.0f;
  ThreadPool pool(threads);
  const KernelContext ctx = {level, &pool};
  const int64_t ldy = w.n() + 3;
  std::vector<float> y(static_cast<size_t>(rows * ldy), kUntouched);
  AlignedBuffer workspace(IsQuantized(w.type()) ? ActivationBytes(rows, w.k()) : 0);
  const Activations a =
      IsQuantized(w.type())
          ? PrepareActivations(ctx, x, rows, w.k(), {workspace.data(), workspace.size()})
          : FloatActivations(x, rows, w.k());
  MatMul(ctx, a, w, y.data(), ldy);
  std::vector<float> out;
  for (int r = 0; r < rows; ++r) {
    const float* row = y.data() + r * ldy;
    out.insert(out.end(), row, row + w.n());
    for (int64_t c = w.n(); c < ldy; ++c) EXPECT_EQ(row[c], kUntouched);
  }
  return out;
}

// The law, written down once more, on the dequantised file and without panels.
std::vector<float> Specification(WeightType type, int64_t n, int64_t k,
                                 std::span<const std::byte> rows, const float* x) {
  std::vector<float> y(static_cast<size_t>(n));
  std::vector<float> w(static_cast<size_t>(k));
  for (int64_t i = 0; i < n; ++i) {
    DequantizeRow(type, rows.subspan(static_cast<size_t>(i) * RowBytes(type, k), RowBytes(type, k)),
                  w);
    float acc = 0.0f;
    for (int64_t j = 0; j < k; ++j) acc = std::fma(w[j], x[j], acc);
    y[i] = acc;
  }
  return y;
}

bool SameBits(const float* a, const float* b, size_t count) {
  return std::memcmp(a, b, count * sizeof(float)) == 0;
}

// A K with a tail for float types, several unpacked pieces for all.
int64_t OddK(WeightType type) { return IsQuantized(type) ? 1280 : 259; }

class MatMulTypeTest : public testing::TestWithParam<WeightType> {};
INSTANTIATE_TEST_SUITE_P(Types, MatMulTypeTest, testing::ValuesIn(kTypes),
                         [](const auto& p) { return std::string(WeightTypeName(p.param)); });

TEST_P(MatMulTypeTest, EveryRowCountAndLevelGivesTheSameBits) {
  const WeightType type = GetParam();
  std::mt19937 rng(11);
  const int64_t k = OddK(type);
  const size_t kn = static_cast<size_t>(k);
  for (int64_t n : {1, 45, 96}) {
    const auto rows = RandomRows(type, n, k, rng);
    const PackedMatrix w = MustPack(type, n, k, rows);
    const std::vector<float> x = RandomFloats(70 * kn, rng);
    const std::vector<float> want = Multiply(CpuLevel::kScalar, 1, w, x.data(), 70);
    for (CpuLevel level : SupportedCpuLevels()) {
      for (int m = 1; m <= 70; m += level == CpuLevel::kScalar ? 23 : 1) {
        // Rows from the middle: a row's bits do not depend on its place or its neighbours.
        const int first = (70 - m) / 2;
        const auto got = Multiply(level, 1, w, x.data() + first * k, m);
        ASSERT_TRUE(SameBits(got.data(), want.data() + first * n, got.size()))
            << CpuLevelName(level) << " m " << m << " n " << n;
      }
    }
  }
}

TEST_P(MatMulTypeTest, ThreadsAndManyRowsGiveTheSameBits) {
  const WeightType type = GetParam();
  std::mt19937 rng(12);
  const int64_t k = IsQuantized(type) ? 512 : 77;
  const int64_t n = 77;
  const PackedMatrix w = MustPack(type, n, k, RandomRows(type, n, k, rng));
  const std::vector<float> x = RandomFloats(512 * static_cast<size_t>(k), rng);
  const CpuLevel best = SupportedCpuLevels().back();
  std::vector<float> want;
  for (int r = 0; r < 512; ++r) {
    const auto row = Multiply(best, 1, w, x.data() + r * k, 1);
    want.insert(want.end(), row.begin(), row.end());
  }
  for (CpuLevel level : SupportedCpuLevels()) {
    for (int threads = 1; threads <= 4; ++threads) {
      for (int m : {1, 5, 49, 512}) {
        const auto got = Multiply(level, threads, w, x.data(), m);
        ASSERT_TRUE(SameBits(got.data(), want.data(), got.size()))
            << CpuLevelName(level) << " threads " << threads << " m " << m;
      }
    }
  }
}

TEST_P(MatMulTypeTest, FollowsTheSpecification) {
  const WeightType type = GetParam();
  std::mt19937 rng(13);
  const int64_t k = OddK(type);
  const int64_t n = 40;
  const auto rows = RandomRows(type, n, k, rng);
  const PackedMatrix w = MustPack(type, n, k, rows);
  const std::vector<float> x = RandomFloats(static_cast<size_t>(k), rng);
  const auto got = Multiply(SupportedCpuLevels().back(), 1, w, x.data(), 1);
  if (!IsQuantized(type)) {
    const auto want = Specification(type, n, k, rows, x.data());
    EXPECT_TRUE(SameBits(got.data(), want.data(), want.size()));
    return;
  }
  // Against exactly dequantised weights in double: each activation is off by at most half a step
  // of its block (and 1e-5 of it from rounding x * (125 / amax)), each of the at most 3 float
  // operations a block adds 2^-24 of the sum so far; 2^-20 of sum |w x| covers 80 fma.
  std::vector<float> wr(static_cast<size_t>(k));
  for (int64_t i = 0; i < n; ++i) {
    DequantizeRow(
        type,
        std::span(rows).subspan(static_cast<size_t>(i) * RowBytes(type, k), RowBytes(type, k)), wr);
    double want = 0;
    double bound = 0;
    for (int64_t b = 0; b < k; b += 32) {
      float amax = 0;
      for (int j = 0; j < 32; ++j) amax = std::max(amax, std::fabs(x[b + j]));
      for (int j = 0; j < 32; ++j) {
        const double wv = wr[b + j];
        want += wv * x[b + j];
        // A minimum and the scaled part may cancel in w: count the larger of both.
        bound += std::fabs(wv) * (0.50001 * amax / 125);
        bound += (std::fabs(wv) + 8.0) * std::fabs(x[b + j]) * 0x1p-20;
      }
    }
    EXPECT_LE(std::fabs(got[i] - want), bound) << "row " << i;
  }
}

TEST_P(MatMulTypeTest, DequantizeRowEqualsTheFile) {
  const WeightType type = GetParam();
  std::mt19937 rng(14);
  const int64_t k = IsQuantized(type) ? 512 : 51;
  const auto rows = RandomRows(type, 45, k, rng);
  const PackedMatrix w = MustPack(type, 45, k, rows);
  EXPECT_EQ(w.packed_bytes(), 64 * RowBytes(type, k));  // no more than the file's, n rounded up
  std::vector<float> want(static_cast<size_t>(k));
  std::vector<float> got(static_cast<size_t>(k));
  for (int64_t i = 0; i < 45; ++i) {
    DequantizeRow(
        type,
        std::span(rows).subspan(static_cast<size_t>(i) * RowBytes(type, k), RowBytes(type, k)),
        want);
    w.DequantizeRow(i, got);
    ASSERT_TRUE(SameBits(got.data(), want.data(), want.size())) << i;
  }
}

TEST_P(MatMulTypeTest, ANanOrInfinityStaysInItsRow) {
  const WeightType type = GetParam();
  std::mt19937 rng(15);
  const int64_t k = 256;
  const PackedMatrix w = MustPack(type, 40, k, RandomRows(type, 40, k, rng));
  std::vector<float> x = RandomFloats(13 * static_cast<size_t>(k), rng);
  const auto want = Multiply(CpuLevel::kScalar, 1, w, x.data(), 13);
  x[3 * k + 7] = std::numeric_limits<float>::quiet_NaN();
  x[8 * k + 255] = -std::numeric_limits<float>::infinity();
  for (CpuLevel level : SupportedCpuLevels()) {
    const auto got = Multiply(level, 2, w, x.data(), 13);
    for (int r = 0; r < 13; ++r) {
      const float* row = got.data() + r * 40;
      if (r == 3 || r == 8) {
        for (int c = 0; c < 40; ++c) EXPECT_FALSE(std::isfinite(row[c]));
      } else {
        EXPECT_TRUE(SameBits(row, want.data() + r * 40, 40)) << r;
      }
    }
  }
}

TEST_P(MatMulTypeTest, StackedEqualsParts) {
  const WeightType type = GetParam();
  std::mt19937 rng(16);
  const int64_t k = 256;
  const auto first = RandomRows(type, 64, k, rng);
  const auto second = RandomRows(type, 19, k, rng);
  const PackedMatrix::Part parts[] = {{type, 64, first}, {type, 19, second}};
  auto stacked = PackedMatrix::PackStacked(parts, k);
  ASSERT_TRUE(stacked.ok());
  EXPECT_EQ(stacked->n(), 83);
  const std::vector<float> x = RandomFloats(static_cast<size_t>(k), rng);
  const CpuLevel level = SupportedCpuLevels().back();
  const auto got = Multiply(level, 1, *stacked, x.data(), 1);
  const auto a = Multiply(level, 1, MustPack(type, 64, k, first), x.data(), 1);
  const auto b = Multiply(level, 1, MustPack(type, 19, k, second), x.data(), 1);
  EXPECT_TRUE(SameBits(got.data(), a.data(), 64));
  EXPECT_TRUE(SameBits(got.data() + 64, b.data(), 19));
}

TEST_P(MatMulTypeTest, ExtremeIntegersDoNotOverflow) {
  const WeightType type = GetParam();
  if (!IsQuantized(type)) return;
  const int64_t k = 256;
  for (int fill : {0x00, 0xff, 0x80, 0x7f}) {
    std::vector<std::byte> rows(32 * RowBytes(type, k), static_cast<std::byte>(fill));
    std::mt19937 rng(17);
    const auto scales = RandomRows(type, 32, k, rng);
    for (size_t at = 0; at < rows.size(); at += BlockBytes(type)) {
      if (const auto affine = AffineFormatOf(type)) {
        std::memcpy(&rows[at], &scales[at], 2 * affine->scale_bytes());
        continue;
      }
      const size_t d = at + (type == WeightType::kQ6_K ? 208 : 0);
      const size_t f16_bytes = BlockBytes(type) > 34 || BlockBytes(type) % 4 == 0 ? 4 : 2;
      std::memcpy(&rows[d], &scales[d], type == WeightType::kQ6_K ? 2 : f16_bytes);
    }
    const PackedMatrix w = MustPack(type, 32, k, rows);
    std::vector<float> x(7 * static_cast<size_t>(k));
    for (size_t i = 0; i < x.size(); ++i)
      x[i] = i % (k * 2) < static_cast<size_t>(k) ? 1.0f : -1.0f;
    const auto want = Multiply(CpuLevel::kScalar, 1, w, x.data(), 7);
    for (CpuLevel level : SupportedCpuLevels()) {
      for (int m : {1, 3, 7}) {
        const auto got = Multiply(level, 1, w, x.data(), m);
        EXPECT_TRUE(SameBits(got.data(), want.data(), got.size()));
      }
    }
  }
}

TEST(MatMul, AnArenaHoldsManyMatricesAndMayGoFirst) {
  std::mt19937 rng(18);
  const int64_t k = 512;
  const auto rows = RandomRows(WeightType::kQ4_K, 77, k, rng);
  const std::vector<float> x = RandomFloats(static_cast<size_t>(k), rng);
  const CpuLevel level = SupportedCpuLevels().back();
  const auto want = Multiply(level, 1, MustPack(WeightType::kQ4_K, 77, k, rows), x.data(), 1);
  std::vector<PackedMatrix> matrices;
  {
    PanelArena arena;
    for (int i = 0; i < 3; ++i) {
      auto m = PackedMatrix::Pack(WeightType::kQ4_K, 77, k, rows, &arena);
      ASSERT_TRUE(m.ok());
      matrices.push_back(std::move(m).value());
    }
    auto large = arena.Allocate(size_t{65} << 20);  // beyond a whole mapping
    ASSERT_TRUE(large.ok());
    large.value().get()[(size_t{65} << 20) - 1] = std::byte{1};
  }
  EXPECT_EQ(matrices[1].panels() - matrices[0].panels(),
            static_cast<ptrdiff_t>(matrices[0].packed_bytes()));
  for (const PackedMatrix& m : matrices) {
    const auto got = Multiply(level, 1, m, x.data(), 1);
    EXPECT_TRUE(SameBits(got.data(), want.data(), want.size()));
  }
}

TEST(MatMul, PackRefusesWhatDoesNotFit) {
  std::vector<std::byte> bytes(32 * 18);
  auto code = [&](WeightType type, int64_t n, int64_t k) {
    return PackedMatrix::Pack(type, n, k, bytes).status().code();
  };
  EXPECT_EQ(code(WeightType::kQ4_0, 32, 32), StatusCode::kOk);
  EXPECT_EQ(code(WeightType::kQ4_0, 31, 32), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(WeightType::kQ4_0, 32, 33), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(WeightType::kQ4_K, 32, 32), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(WeightType::kQ4_0, 0, 32), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(WeightType::kQ4_0, -1, 32), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(WeightType::kF32, int64_t{1} << 62, int64_t{1} << 62),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(code(WeightType::kF32, int64_t{1} << 31, int64_t{1} << 31),
            StatusCode::kInvalidArgument);
  const PackedMatrix::Part mixed[] = {{WeightType::kQ4_0, 32, bytes},
                                      {WeightType::kQ8_0, 32, bytes}};
  EXPECT_EQ(PackedMatrix::PackStacked(mixed, 32).status().code(), StatusCode::kInvalidArgument);
  const PackedMatrix::Part odd[] = {{WeightType::kQ4_0, 16, std::span(bytes).first(16 * 18)},
                                    {WeightType::kQ4_0, 32, bytes}};
  EXPECT_EQ(PackedMatrix::PackStacked(odd, 32).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(PackedMatrix::PackStacked({}, 32).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace cairn
