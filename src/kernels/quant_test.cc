#include "kernels/quant.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/kernel_context.h"

namespace cairn {
namespace {

constexpr WeightType kQuantized[] = {WeightType::kQ8_0, WeightType::kQ4_0, WeightType::kQ4_1,
                                     WeightType::kQ5_0, WeightType::kQ5_1, WeightType::kQ4_K,
                                     WeightType::kQ5_K, WeightType::kQ6_K};

uint32_t Bits(float f) {
  uint32_t b;
  std::memcpy(&b, &f, sizeof b);
  return b;
}

std::vector<float> Dequantize(WeightType type, const std::vector<uint8_t>& bytes, size_t count) {
  std::vector<float> out(count);
  DequantizeRow(type, std::as_bytes(std::span(bytes)), out);
  return out;
}

TEST(Quant, DequantizeEqualsTheGgufPackage) {
  for (WeightType type : kQuantized) {
    const std::string path =
        std::string("tests/golden/data/quant_blocks/") + WeightTypeName(type) + ".bin";
    std::ifstream file(path, std::ios::binary);
    ASSERT_TRUE(file) << path;
    std::vector<char> data((std::istreambuf_iterator<char>(file)),
                           std::istreambuf_iterator<char>());
    const size_t row_bytes = RowBytes(type, 512);
    ASSERT_EQ(data.size(), row_bytes + 512 * sizeof(float));
    const std::vector<uint8_t> row(data.begin(), data.begin() + static_cast<long>(row_bytes));
    const std::vector<float> got = Dequantize(type, row, 512);
    EXPECT_EQ(0, std::memcmp(got.data(), data.data() + row_bytes, 512 * sizeof(float)))
        << WeightTypeName(type);
  }
}

// `head`, then `fill` up to `size` bytes.
std::vector<uint8_t> Block(size_t size, std::initializer_list<uint8_t> head, uint8_t fill) {
  std::vector<uint8_t> block(size, fill);
  std::copy(head.begin(), head.end(), block.begin());
  return block;
}

TEST(Quant, HandComputedBlocks) {
  // d = 0.5 (f16 0x3800), m = -1 (0xbc00).
  const auto q4_1 = Block(20, {0x00, 0x38, 0x00, 0xbc}, 0x2f);  // low nibble 15, high nibble 2
  const std::vector<float> a = Dequantize(WeightType::kQ4_1, q4_1, 32);
  EXPECT_EQ(a[0], 0.5f * 15 - 1);
  EXPECT_EQ(a[16], 0.5f * 2 - 1);

  // fifth bit of 0 and 31
  const auto q5_0 = Block(22, {0x00, 0x38, 0x01, 0x00, 0x00, 0x80}, 0x2f);
  const std::vector<float> b = Dequantize(WeightType::kQ5_0, q5_0, 32);
  EXPECT_EQ(b[0], 0.5f * (31 - 16));
  EXPECT_EQ(b[1], 0.5f * (15 - 16));
  EXPECT_EQ(b[30], 0.5f * (2 - 16));
  EXPECT_EQ(b[31], 0.5f * (18 - 16));

  const auto q8_0 = Block(34, {0x00, 0x38}, 0x80);  // -128
  EXPECT_EQ(Dequantize(WeightType::kQ8_0, q8_0, 32)[31], -64.0f);

  // Q4_K: d = 0.5, dmin = -1; sub-block 5: scale 33 = 1 | 2 << 4, minimum 18 = 2 | 1 << 4.
  std::vector<uint8_t> q4_k(144, 0);
  q4_k[1] = 0x38;
  q4_k[3] = 0xbc;
  q4_k[4 + 1] = 2 << 6;      // top bits of scale 5
  q4_k[4 + 5] = 1 << 6;      // top bits of minimum 5
  q4_k[4 + 9] = 1 | 2 << 4;  // low bits of both
  q4_k[16 + 2 * 32 + 7] = 0x30;
  const std::vector<float> k = Dequantize(WeightType::kQ4_K, q4_k, 256);
  EXPECT_EQ(k[5 * 32 + 7], 0.5f * 33 * 3 + 18);
  EXPECT_EQ(k[5 * 32 + 8], 18.0f);
  EXPECT_EQ(k[4 * 32 + 7], 0.0f);

  // Q6_K: d = 0.5, element 128 + 96 + 5: group 14, high bits 6..7 of qh[32 + 5].
  std::vector<uint8_t> q6_k(210, 0);
  q6_k[209] = 0x38;
  q6_k[192 + 14] = 0xfd;     // -3
  q6_k[64 + 32 + 5] = 0x70;  // high nibble of ql
  q6_k[128 + 32 + 5] = 3 << 6;
  const std::vector<float> s = Dequantize(WeightType::kQ6_K, q6_k, 256);
  EXPECT_EQ(s[128 + 96 + 5], 0.5f * -3 * (7 + 48 - 32));
}

TEST(Quant, HalfConversionsRoundTripAndSaturate) {
  for (uint32_t h = 0; h < 65536; ++h) {
    const float f = HalfToFloat(static_cast<uint16_t>(h));
    if (std::isnan(f)) {
      EXPECT_TRUE(std::isnan(HalfToFloat(FloatToHalf(f))));
    } else if (std::isinf(f)) {
      EXPECT_EQ(HalfToFloat(FloatToHalf(f)), std::copysign(65504.0f, f));
    } else {
      ASSERT_EQ(FloatToHalf(f), h);
      ASSERT_EQ(std::ldexp(static_cast<float>((h & 0x3ff) | (h & 0x7c00 ? 0x400 : 0)),
                           std::max<int>(h >> 10 & 31, 1) - 25) *
                    (h & 0x8000 ? -1.0f : 1.0f),
                f);
    }
  }
  EXPECT_EQ(FloatToHalf(65519.9f), 0x7bff);
  EXPECT_EQ(FloatToHalf(1e30f), 0x7bff);
  EXPECT_EQ(FloatToHalf(-1e30f), 0xfbff);
  EXPECT_EQ(FloatToHalf(1.0f + 0x1p-11f), 0x3c00);      // tie to even, down
  EXPECT_EQ(FloatToHalf(1.0f + 3 * 0x1p-11f), 0x3c02);  // tie to even, up
  EXPECT_EQ(FloatToHalf(0x1p-25f), 0);                  // tie to zero
  EXPECT_EQ(FloatToHalf(0x1.8p-25f), 1);
  EXPECT_EQ(FloatToHalf(-0.0f), 0x8000);
}

TEST(Quant, NamesAndIds) {
  EXPECT_STREQ(WeightTypeName(WeightType::kQ4_K), "Q4_K");
  EXPECT_EQ(WeightTypeFromGgml(30), WeightType::kBF16);
  EXPECT_EQ(WeightTypeFromGgml(14), WeightType::kQ6_K);
  EXPECT_FALSE(WeightTypeFromGgml(10).has_value());  // Q2_K
  EXPECT_EQ(RowBytes(WeightType::kQ6_K, 512), 420u);
}

class QuantizeRowTest : public testing::Test {
 protected:
  struct Quantized {
    std::vector<int8_t> q;
    std::vector<ActivationBlock> blocks;
  };
  Quantized Run(CpuLevel level, const std::vector<float>& x) {
    Quantized out = {std::vector<int8_t>(x.size()), std::vector<ActivationBlock>(x.size() / 32)};
    QuantizeRow({level, &pool_}, x.data(), static_cast<int64_t>(x.size()), out.q.data(),
                out.blocks.data());
    return out;
  }
  ThreadPool pool_{1};
};

TEST_F(QuantizeRowTest, FollowsItsDefinition) {
  std::vector<float> x(64, 0.0f);
  x[0] = -254.0f;
  x[1] = 1.0f;  // 0.5: half to even
  x[2] = 3.0f;  // 1.5
  x[20] = 10.0f;
  std::fill(x.begin() + 3, x.begin() + 20, 100.0f);  // 50 with the finer scale only
  // 2.032 (amax / 125) represents 125 of them better than 2 (amax / 127).
  std::vector<float> coarse(32, 2.032f * 3);
  coarse[0] = 254.0f;
  for (CpuLevel level : SupportedCpuLevels()) {
    const Quantized got = Run(level, x);
    EXPECT_EQ(got.q[0], -127);
    EXPECT_EQ(got.q[1], 0);
    EXPECT_EQ(got.q[2], 2);
    EXPECT_EQ(got.q[20], 5);
    EXPECT_EQ(got.blocks[0].scale, 2.0f);
    EXPECT_EQ(got.blocks[0].scaled_sum, 2.0f * (-127 + 2 + 850 + 5));
    EXPECT_EQ(got.blocks[0].offset, -8 * (-127 + 2 + 850 + 5));
    EXPECT_EQ(got.blocks[0].low_offset, -8 * (-127 + 2 + 650));
    EXPECT_EQ(got.blocks[1].scale, 0.0f);
    EXPECT_EQ(Run(level, coarse).blocks[0].scale, 254.0f / 125.0f);
    EXPECT_EQ(Run(level, coarse).q[0], 125);
    EXPECT_EQ(Run(level, coarse).q[1], 3);
  }
}

TEST_F(QuantizeRowTest, BitsAreEqualOnEveryLevel) {
  std::mt19937 rng(3);
  std::vector<float> x(32 * 4096);
  for (size_t b = 0; b < x.size() / 32; ++b) {
    const float size = std::ldexp(1.0f, static_cast<int>(rng() % 240) - 130);
    for (size_t i = 0; i < 32; ++i) {
      x[b * 32 + i] = size * (static_cast<float>(rng()) * 0x1p-31f - 1.0f);
    }
  }
  x[5] = std::numeric_limits<float>::infinity();
  x[40] = -std::numeric_limits<float>::quiet_NaN();
  x[70] = std::numeric_limits<float>::max();
  const Quantized want = Run(CpuLevel::kScalar, x);
  for (CpuLevel level : SupportedCpuLevels()) {
    const Quantized got = Run(level, x);
    EXPECT_EQ(0, std::memcmp(got.q.data(), want.q.data(), got.q.size()));
    EXPECT_EQ(0, std::memcmp(got.blocks.data(), want.blocks.data(),
                             got.blocks.size() * sizeof(ActivationBlock)));
    EXPECT_EQ(Bits(got.blocks[0].scale), 0x7fc00000u);
    EXPECT_EQ(Bits(got.blocks[1].scale), 0x7fc00000u);
    EXPECT_EQ(got.q[5], 0);
    EXPECT_EQ(got.q[70], 127);
  }
  for (size_t i = 0; i < x.size(); ++i) {
    const double scale = want.blocks[i / 32].scale;
    if (std::isnan(scale)) continue;
    // Half a step, the relative rounding of x * (127 / amax) on top; tiny blocks become zero.
    EXPECT_LE(std::fabs(x[i] - scale * want.q[i]), scale * 0.50002 + 0x1p-100) << i;
  }
}

}  // namespace
}  // namespace cairn
