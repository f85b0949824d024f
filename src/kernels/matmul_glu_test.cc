// What one list of tasks, or one pass, computes is what the single calls compute, bit for bit.
#include "kernels/matmul_glu.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "kernels/moe_ops.h"
#include "kernels/norm_activations.h"
#include "kernels/vector_ops.h"

namespace cairn {
namespace {

using Floats = std::vector<float>;

Floats RandomFloats(size_t count, std::mt19937& rng) {
  Floats x(count);
  for (float& v : x) v = static_cast<float>(rng()) * 0x1p-30f - 2.0f;
  return x;
}

// Random integers; the f16 fields of every block are about 2^-7.
PackedMatrix RandomMatrix(WeightType type, int64_t n, int64_t k, std::mt19937& rng) {
  std::vector<std::byte> rows(static_cast<size_t>(n) * RowBytes(type, k));
  for (std::byte& b : rows) b = static_cast<std::byte>(rng());
  const auto soften = [&](size_t at) {
    rows[at + 1] = (rows[at + 1] & std::byte{0x83}) | std::byte{0x20};
  };
  const bool has_min = type == WeightType::kQ4_K;
  for (size_t at = 0; at < rows.size(); at += BlockBytes(type)) {
    if (type == WeightType::kF32) {
      rows[at + 3] = std::byte{0x3c};
      continue;
    }
    soften(at + (type == WeightType::kQ6_K ? 208 : 0));
    if (has_min) soften(at + 2);
  }
  auto m = PackedMatrix::Pack(type, n, k, rows);
  EXPECT_TRUE(m.ok()) << m.status().ToString();
  return std::move(m).value();
}

bool SameBytes(const void* a, const void* b, size_t bytes) { return std::memcmp(a, b, bytes) == 0; }

// An int8 form and the memory it lies in.
struct Int8Rows {
  Int8Rows(int rows, int64_t k) : memory(ActivationBytes(rows, k)) {}
  std::span<std::byte> space() { return {memory.data(), memory.size()}; }
  AlignedBuffer memory;
};

struct GluCase {
  int rows;
  int64_t n, k;
};

// Rows on both sides of every limit: few rows, several passes over k, several runs of rows.
constexpr GluCase kGluCases[] = {{1, 96, 256},   {2, 64, 512},    {13, 160, 1280},
                                 {70, 96, 2048}, {300, 64, 1280}, {520, 32, 256}};

class GluMatMulTest : public testing::TestWithParam<GluActivation> {};

TEST_P(GluMatMulTest, IsTheInt8FormOfTheSeparateSteps) {
  std::mt19937 rng(1);
  for (const WeightType type : {WeightType::kQ4_0, WeightType::kQ8_0, WeightType::kQ4_K,
                                WeightType::kQ6_K, WeightType::kAffine4G64BF16}) {
    for (const GluCase& c : kGluCases) {
      const PackedMatrix w = RandomMatrix(type, 2 * c.n, c.k, rng);
      const Floats x = RandomFloats(static_cast<size_t>(c.rows * c.k), rng);
      for (const CpuLevel level : SupportedCpuLevels()) {
        ThreadPool pool(1 + c.rows % 3);
        const KernelContext ctx = {level, &pool};
        Int8Rows input(c.rows, c.k), want_rows(c.rows, c.n), got_rows(c.rows, c.n);
        const Activations a = PrepareActivations(ctx, x.data(), c.rows, c.k, input.space());
        Floats gate_up(static_cast<size_t>(c.rows * 2 * c.n));
        Floats h(static_cast<size_t>(c.rows * c.n));
        MatMul(ctx, a, w, gate_up.data(), 2 * c.n);
        const auto glu = GetParam() == GluActivation::kSilu ? SwiGluRows : GeGluRows;
        glu(ctx, gate_up.data(), 2 * c.n, c.rows, c.n, h.data());
        const Activations want = PrepareActivations(ctx, h.data(), c.rows, c.n, want_rows.space());
        const Activations got = GluMatMul(ctx, a, w, GetParam(), got_rows.space());
        const std::string what = std::string(WeightTypeName(type)) + " " + CpuLevelName(level) +
                                 " rows " + std::to_string(c.rows);
        ASSERT_EQ(got.rows, c.rows);
        ASSERT_EQ(got.k, c.n);
        const auto values = static_cast<size_t>(c.rows * c.n);
        EXPECT_TRUE(SameBytes(got.q, want.q, values)) << what;
        EXPECT_TRUE(SameBytes(got.blocks, want.blocks, values / 32 * sizeof(ActivationBlock)))
            << what;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Activations, GluMatMulTest,
                         testing::Values(GluActivation::kSilu, GluActivation::kGelu));

TEST(NormActivations, AreTheNormAndTheInt8FormOfIt) {
  std::mt19937 rng(3);
  for (const auto& [rows, k] : {std::pair{1, 1024}, {7, 96}, {300, 320}}) {
    const Floats x = RandomFloats(static_cast<size_t>(rows * k), rng);
    const Floats w = RandomFloats(static_cast<size_t>(k), rng);
    for (const CpuLevel level : SupportedCpuLevels()) {
      ThreadPool pool(2);
      const KernelContext ctx = {level, &pool};
      Floats want_y(x.size()), got_y(x.size());
      Int8Rows want_rows(rows, k), got_rows(rows, k);
      RmsNormRows(ctx, x.data(), w.data(), 1e-6f, rows, k, want_y.data());
      const Activations want = PrepareActivations(ctx, want_y.data(), rows, k, want_rows.space());
      const Activations got =
          NormActivations(ctx, x.data(), w.data(), 1e-6f, rows, k, got_y.data(), got_rows.space());
      EXPECT_EQ(got.x, got_y.data());
      EXPECT_TRUE(SameBytes(got_y.data(), want_y.data(), x.size() * sizeof(float)));
      EXPECT_TRUE(SameBytes(got.q, want.q, x.size()));
      EXPECT_TRUE(SameBytes(got.blocks, want.blocks, x.size() / 32 * sizeof(ActivationBlock)));
    }
  }
}

TEST(MatMulAll, EqualsOneMatMulAfterTheOther) {
  std::mt19937 rng(2);
  constexpr int64_t kK = 1280;
  const std::vector<std::pair<WeightType, int64_t>> parts = {
      {WeightType::kQ4_K, 320}, {WeightType::kQ6_K, 64}, {WeightType::kQ8_0, 5},
      {WeightType::kF32, 33},   {WeightType::kQ4_0, 96}, {WeightType::kQ4_K, 1},
      {WeightType::kQ8_0, 40},  {WeightType::kF32, 16},  {WeightType::kQ4_0, 17}};
  std::vector<PackedMatrix> matrices;
  int64_t width = 3;  // columns that nobody writes
  for (const auto& [type, n] : parts) {
    matrices.push_back(RandomMatrix(type, n, kK, rng));
    width += n;
  }
  for (const int rows : {1, 3, 30, 100}) {
    const Floats x = RandomFloats(static_cast<size_t>(rows * kK), rng);
    for (const CpuLevel level : SupportedCpuLevels()) {
      Floats want;
      for (int threads = 1; threads <= 3; ++threads) {
        ThreadPool pool(threads);
        const KernelContext ctx = {level, &pool};
        Int8Rows input(rows, kK);
        const Activations a = PrepareActivations(ctx, x.data(), rows, kK, input.space());
        Floats one(static_cast<size_t>(rows * width), -1.0f), all = one;
        std::vector<MatMulOutput> outputs;
        int64_t column = 0;
        for (const PackedMatrix& w : matrices) {
          MatMul(ctx, a, w, one.data() + column, width);
          outputs.push_back({&w, all.data() + column, width});
          column += w.n();
        }
        MatMulAll(ctx, a, outputs);
        EXPECT_TRUE(SameBytes(all.data(), one.data(), one.size() * sizeof(float)))
            << CpuLevelName(level) << " threads " << threads << " rows " << rows;
        if (threads == 1) want = one;
        EXPECT_TRUE(SameBytes(one.data(), want.data(), want.size() * sizeof(float)));
      }
    }
  }
}

}  // namespace
}  // namespace cairn
