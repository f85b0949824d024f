#include "model/weights.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "model/gguf.h"
#include "support/gguf_writer.h"

namespace cairn {
namespace {

using testing::GgufWriter;
using testing::kTensorBF16;
using testing::kTensorF16;
using testing::kTensorF32;
using testing::kTensorQ8_0;

std::vector<float> Ramp(size_t count, float step = 1.0f) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i) * step;
  return values;
}

// A file and its reader; the reader views the bytes.
struct Fixture {
  explicit Fixture(const GgufWriter& writer)
      : bytes(writer.Bytes()),
        file(GgufFile::FromBytes(bytes).value()),
        source(file.OpenTensors()) {}

  std::vector<std::byte> bytes;
  GgufFile file;
  std::unique_ptr<TensorSource> source;
};

GgufWriter TwoMatrices() {
  GgufWriter writer;
  writer.TensorF32s("a", {64, 32}, Ramp(2048))
      .TensorF32s("b", {64, 5}, Ramp(320, -0.5f))
      .TensorF32s("norm", {64}, Ramp(64, 0.25f));
  return writer;
}

void ExpectRow(const PackedMatrix& matrix, int64_t row, std::span<const float> expected) {
  std::vector<float> got(expected.size());
  matrix.DequantizeRow(row, got);
  EXPECT_EQ(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)), 0) << row;
}

TEST(Weights, MatrixKeepsTheFilesValues) {
  const Fixture f(TwoMatrices());
  Weights weights(*f.source);
  auto b = weights.Matrix("b", 5, 64);
  ASSERT_TRUE(b.ok()) << b.status().ToString();
  const std::vector<float> values = Ramp(320, -0.5f);
  for (int64_t row = 0; row < 5; ++row) {
    ExpectRow(*b, row, std::span(values).subspan(static_cast<size_t>(row) * 64, 64));
  }
  EXPECT_EQ(weights.Shape("b").value(), (std::vector<int64_t>{5, 64}));
}

TEST(Weights, StackedIsOneMatrixAfterTheOther) {
  const Fixture f(TwoMatrices());
  Weights weights(*f.source);
  const std::vector<Weights::Part> parts = {{"a", 32}, {"b", 5}};
  ASSERT_TRUE(weights.CanStack(parts));
  auto stacked = weights.Stacked(parts, 64);
  ASSERT_TRUE(stacked.ok()) << stacked.status().ToString();
  EXPECT_EQ(stacked->n(), 37);
  const std::vector<float> a = Ramp(2048);
  const std::vector<float> b = Ramp(320, -0.5f);
  ExpectRow(*stacked, 31, std::span(a).last(64));
  ExpectRow(*stacked, 32, std::span(b).first(64));
  EXPECT_EQ(weights.resident_bytes(), stacked->packed_bytes());
}

TEST(Weights, CanStackWantsOneTypeAndFullPanels) {
  GgufWriter writer = TwoMatrices();
  const std::vector<std::byte> halves(64 * 32 * 2);
  writer.Tensor("half", kTensorF16, {64, 32}, halves);
  const Fixture f(writer);
  const Weights weights(*f.source);
  const auto can = [&](std::vector<Weights::Part> parts) { return weights.CanStack(parts); };
  EXPECT_TRUE(can({{"a", 32}, {"a", 32}}));
  EXPECT_FALSE(can({{"b", 5}, {"a", 32}}));      // 5 columns do not fill a panel
  EXPECT_FALSE(can({{"a", 32}, {"half", 32}}));  // F32 and F16
  EXPECT_FALSE(can({{"a", 32}, {"absent", 32}}));
}

TEST(Weights, VectorsOfEveryFloatTypeAreExact) {
  const uint16_t halves[] = {0x3c00, 0xc000, 0x0001, 0x7bff};  // 1, -2, 2^-24, 65504
  const uint16_t brains[] = {0x3f80, 0xc000, 0x0001, 0x7f7f};
  const float floats[] = {1.0f, -2.0f, 1e-45f, 3e38f};
  GgufWriter writer;
  writer.Tensor("f16", kTensorF16, {4}, std::as_bytes(std::span(halves)))
      .Tensor("bf16", kTensorBF16, {4}, std::as_bytes(std::span(brains)))
      .Tensor("f32", kTensorF32, {4, 1}, std::as_bytes(std::span(floats)));
  const Fixture f(writer);
  Weights weights(*f.source);
  EXPECT_EQ(weights.Vector("f16", 4).value(),
            (std::vector<float>{1.0f, -2.0f, 0x1p-24f, 65504.0f}));
  EXPECT_EQ(weights.Vector("bf16", 4).value(),
            (std::vector<float>{1.0f, -2.0f, 0x1p-133f, 0x1.fep127f}));
  EXPECT_EQ(weights.Vector("f32", 4).value(), (std::vector<float>{1.0f, -2.0f, 1e-45f, 3e38f}));
  EXPECT_EQ(weights.OptionalVector("absent", 4).value(), std::nullopt);
  EXPECT_TRUE(weights.OptionalVector("f32", 4).value().has_value());
}

TEST(Weights, ErrorsSayWhatGotWanted) {
  GgufWriter writer = TwoMatrices();
  const std::vector<std::byte> data(66);
  writer.Tensor("iq", 16, {256}, data).Tensor("q8", kTensorQ8_0, {32}, std::span(data).first(34));
  const Fixture f(writer);
  Weights weights(*f.source);
  EXPECT_EQ(weights.Matrix("a", 64, 32).status().message(),
            "[weights] tensor 'a': got shape [32, 64], wanted [64, 32]");
  EXPECT_EQ(weights.Floats("norm", {8, 8}).status().message(),
            "[weights] tensor 'norm': got shape [64], wanted [8, 8]");
  EXPECT_EQ(weights.Vector("q8", 32).status().message(),
            "[weights] tensor 'q8': got Q8_0, wanted F32, F16 or BF16");
  const Status absent = weights.Vector("absent", 4).status();
  EXPECT_EQ(absent.code(), StatusCode::kNotFound);
  const Status unsupported = weights.Vector("iq", 256).status();
  EXPECT_EQ(unsupported.code(), StatusCode::kUnsupported);
  EXPECT_EQ(unsupported.message(),
            "[gguf] tensor 'iq': got IQ2_XXS, wanted one of F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, "
            "Q8_0, Q4_K, Q5_K, Q6_K, BF16");
  const std::vector<Weights::Part> parts = {{"b", 5}, {"a", 32}};
  EXPECT_FALSE(weights.Stacked(parts, 64).ok());
  EXPECT_EQ(weights.parameter_count(), 0);  // what failed was not taken
}

TEST(Weights, CountsEachTensorOnceAndReportsProgress) {
  const Fixture f(TwoMatrices());
  std::vector<std::pair<uint64_t, uint64_t>> progress;
  Weights weights(*f.source,
                  [&](uint64_t done, uint64_t total) { progress.emplace_back(done, total); });
  ASSERT_TRUE(weights.Matrix("a", 32, 64).ok());
  ASSERT_TRUE(weights.Vector("norm", 64).ok());
  ASSERT_TRUE(weights.Matrix("a", 32, 64).ok());  // again: a tied head
  EXPECT_EQ(weights.parameter_count(), 2048 + 64);
  EXPECT_EQ(weights.file_bytes(), (2048u + 64u) * 4u);
  EXPECT_EQ(weights.quantization(), "F32");
  const uint64_t total = (2048u + 320u + 64u) * 4u;
  EXPECT_EQ(progress, (std::vector<std::pair<uint64_t, uint64_t>>{{8192, total}, {8448, total}}));
}

uint64_t HashOf(const GgufWriter& writer, bool norm_first) {
  const Fixture f(writer);
  Weights weights(*f.source);
  if (norm_first) {
    EXPECT_TRUE(weights.Vector("norm", 64).ok());
  }
  EXPECT_TRUE(weights.Matrix("a", 32, 64).ok());
  if (!norm_first) {
    EXPECT_TRUE(weights.Vector("norm", 64).ok());
  }
  return weights.Hash();
}

TEST(Weights, HashDependsOnNamesShapesAndBitsNotOnOrder) {
  const uint64_t hash = HashOf(TwoMatrices(), false);
  EXPECT_EQ(HashOf(TwoMatrices(), true), hash);

  std::vector<float> changed = Ramp(2048);
  changed[2047] = -changed[2047];
  GgufWriter one_bit;
  one_bit.TensorF32s("a", {64, 32}, changed).TensorF32s("norm", {64}, Ramp(64, 0.25f));
  EXPECT_NE(HashOf(one_bit, false), hash);

  // The file's other tensors and its metadata are not what this model reads.
  GgufWriter other_place;
  other_place.String("general.name", "x")
      .TensorF32s("norm", {64}, Ramp(64, 0.25f))
      .TensorF32s("a", {64, 32}, Ramp(2048));
  EXPECT_EQ(HashOf(other_place, false), hash);
}

}  // namespace
}  // namespace cairn
