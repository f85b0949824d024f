#include "model/gguf.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "model/gguf_types.h"
#include "support/gguf_writer.h"

namespace cairn {
namespace {

using testing::GgufWriter;

GgufWriter EveryKind() {
  const std::vector<std::string> words = {"a", "", "longer word"};
  const std::vector<int32_t> numbers = {3, -1, 0};
  const std::vector<float> floats = {0.5f, -2.0f};
  const std::vector<float> data = {1, 2, 3, 4, 5, 6};
  GgufWriter writer;
  writer.String("general.architecture", "llama")
      .U32("u32", 7)
      .U64("u64", ~0ull)
      .I32("i32", -7)
      .F32("f32", 1.5f)
      .F64("f64", 2.5)
      .F64("f64.large", 1e300)
      .Bool("yes", true)
      .Bool("no", false)
      .Strings("words", words)
      .I32s("numbers", numbers)
      .F32s("floats", floats)
      .TensorF32s("w", {3, 2}, data)
      .TensorF32s("v", {6}, data);
  return writer;
}

TEST(Gguf, ReadsEveryKindOfValue) {
  const std::vector<std::byte> bytes = EveryKind().Bytes();
  auto file = GgufFile::FromBytes(bytes);
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_EQ(file->version(), 3u);
  EXPECT_EQ(file->GetString("general.architecture").value(), "llama");
  EXPECT_EQ(file->GetU64("u32").value(), 7u);
  EXPECT_EQ(file->GetU64("u64").value(), ~0ull);
  EXPECT_EQ(file->GetI64("i32").value(), -7);
  EXPECT_EQ(file->GetF32("f32").value(), 1.5f);
  EXPECT_EQ(file->GetF32("f64").value(), 2.5f);
  EXPECT_TRUE(file->GetBool("yes").value());
  EXPECT_FALSE(file->GetBool("no").value());
  EXPECT_EQ(file->GetStringArray("words").value(),
            (std::vector<std::string_view>{"a", "", "longer word"}));
  EXPECT_EQ(file->GetI64Array("numbers").value(), (std::vector<int64_t>{3, -1, 0}));
  EXPECT_EQ(file->GetF32Array("floats").value(), (std::vector<float>{0.5f, -2.0f}));
  EXPECT_EQ(file->ArraySize("words"), 3u);
  EXPECT_EQ(file->ArraySize("u32"), std::nullopt);
  EXPECT_EQ(file->FindU64("absent").value(), std::nullopt);
  EXPECT_EQ(file->GetU64Or("absent", 9).value(), 9u);
  EXPECT_TRUE(file->GetBoolOr("absent", true).value());
  EXPECT_EQ(file->GetF32Or("f32", 9.0f).value(), 1.5f);
}

TEST(Gguf, WrongTypesAndAbsentKeysSayWhatGotWanted) {
  const std::vector<std::byte> bytes = EveryKind().Bytes();
  auto file = GgufFile::FromBytes(bytes);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->GetU64("absent").status().message(),
            "[gguf] key 'absent': got none, wanted a value");
  EXPECT_EQ(file->GetU64("f32").status().message(),
            "[gguf] key 'f32': got float32, wanted an integer");
  EXPECT_EQ(file->GetU64("i32").status().message(),
            "[gguf] key 'i32': got -7, wanted an integer >= 0");
  EXPECT_EQ(file->GetI64("u64").status().message(),
            "[gguf] key 'u64': got 18446744073709551615, wanted at most 2^63 - 1");
  EXPECT_EQ(file->FindU64("yes").status().message(),
            "[gguf] key 'yes': got bool, wanted an integer");
  EXPECT_EQ(file->GetString("words").status().message(),
            "[gguf] key 'words': got array of string, wanted a string");
  EXPECT_EQ(file->GetI64Array("words").status().message(),
            "[gguf] key 'words': got array of string, wanted an array of integers");
  EXPECT_EQ(file->GetStringArray("u32").status().message(),
            "[gguf] key 'u32': got uint32, wanted an array");
  EXPECT_FALSE(file->GetF32("f64.large").ok());
  EXPECT_FALSE(file->GetF32Array("numbers").ok());
  EXPECT_FALSE(file->GetBool("u32").ok());
  EXPECT_FALSE(file->GetBoolOr("u32", true).ok());  // present with a wrong type: no fallback
}

TEST(Gguf, TensorsKeepDimsAndBytes) {
  const std::vector<std::byte> bytes = EveryKind().Bytes();
  auto file = GgufFile::FromBytes(bytes);
  ASSERT_TRUE(file.ok());
  ASSERT_EQ(file->tensors().size(), 2u);
  const GgufTensor* w = file->GetTensor("w").value();
  EXPECT_EQ(w->dims, (std::vector<int64_t>{3, 2}));
  EXPECT_EQ(w->element_count(), 6);
  const std::vector<float> expected = {1, 2, 3, 4, 5, 6};
  ASSERT_EQ(w->bytes.size(), 24u);
  EXPECT_EQ(std::memcmp(w->bytes.data(), expected.data(), 24), 0);
  EXPECT_EQ(file->FindTensor("x"), nullptr);
  EXPECT_EQ(file->GetTensor("x").status().code(), StatusCode::kNotFound);
}

TEST(Gguf, Version2AndOtherAlignmentsAreRead) {
  const std::vector<float> data = {1, 2, 3};
  for (const uint64_t alignment : {8ull, 64ull, 4096ull}) {
    GgufWriter writer(2, alignment);
    writer.TensorF32s("a", {3}, data).TensorF32s("b", {1}, std::span(data).first(1));
    const std::vector<std::byte> bytes = writer.Bytes();
    auto file = GgufFile::FromBytes(bytes);
    ASSERT_TRUE(file.ok()) << file.status().ToString();
    EXPECT_EQ(file->version(), 2u);
    EXPECT_EQ(std::memcmp(file->FindTensor("b")->bytes.data(), data.data(), 4), 0);
  }
}

TEST(Gguf, OpenMapsAFileAndReleasedPagesComeBack) {
  const std::string path = ::testing::TempDir() + "/cairn_gguf_test.gguf";
  std::vector<float> data(1 << 16);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(i);
  GgufWriter writer;
  ASSERT_TRUE(writer.TensorF32s("w", {data.size()}, data).Write(path));
  auto opened = GgufFile::Open(path);
  ASSERT_TRUE(opened.ok()) << opened.status().ToString();
  const GgufFile file = std::move(*opened);  // views survive the move
  const GgufTensor* w = file.FindTensor("w");
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(std::memcmp(w->bytes.data(), data.data(), w->bytes.size()), 0);
    file.ReleasePages(w->bytes);
    file.PrefetchPages(w->bytes);
  }
  EXPECT_EQ(file.path(), path);
  std::remove(path.c_str());
}

TEST(Gguf, OpenNamesTheFileInErrors) {
  EXPECT_EQ(GgufFile::Open("/nonexistent/x.gguf").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(GgufFile::Open("/").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(GgufFile::Open("/dev/null").status().code(), StatusCode::kInvalidArgument);
  const auto broken = GgufFile::Open("CMakeLists.txt").status();
  EXPECT_EQ(broken.code(), StatusCode::kDataLoss);
  EXPECT_EQ(broken.message(), "[gguf] magic: got 'cmak', wanted 'GGUF' in file 'CMakeLists.txt'");
}

TEST(Gguf, TensorsOfUnsupportedTypesDoNotStopTheFile) {
  const std::vector<std::byte> data(66);
  GgufWriter writer;
  writer.Tensor("iq", 16, {256}, data).Tensor("future", 99, {5}, data);
  const std::vector<std::byte> bytes = writer.Bytes();
  auto file = GgufFile::FromBytes(bytes);
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_EQ(file->FindTensor("iq")->bytes.size(), 66u);
  EXPECT_TRUE(file->FindTensor("future")->bytes.empty());
  EXPECT_EQ(GgmlTypeName(16), "IQ2_XXS");
  EXPECT_EQ(GgmlTypeName(99), "type 99");
}

TEST(Gguf, DescribesValuesForPeople) {
  const std::vector<std::byte> bytes = EveryKind().String("evil", "a\x1b[2J\n").Bytes();
  auto file = GgufFile::FromBytes(bytes);
  ASSERT_TRUE(file.ok());
  std::vector<std::string> texts;
  for (const auto& entry : file->entries()) texts.push_back(GgufFile::Describe(entry));
  EXPECT_EQ(texts, (std::vector<std::string>{"'llama'", "7", "18446744073709551615", "-7", "1.5",
                                             "2.5", "1e+300", "true", "false", "[string x 3]",
                                             "[int32 x 3]", "[float32 x 2]", "'a\\x1b[2J\\x0a'"}));
}

TEST(Gguf, AQuarterMillionStringsOpenQuickly) {
  std::vector<std::string> tokens(250000);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = "token" + std::to_string(i);
  GgufWriter writer;
  const std::vector<std::byte> bytes = writer.Strings("tokenizer.ggml.tokens", tokens).Bytes();
  const auto begin = std::chrono::steady_clock::now();
  auto file = GgufFile::FromBytes(bytes);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->GetStringArray("tokenizer.ggml.tokens").value()[249999], "token249999");
  // About 5 ms on a 2.5 GHz core; the bound only catches work that grows faster than the file.
  EXPECT_LT(took.count(), 1.0);
}

}  // namespace
}  // namespace cairn
