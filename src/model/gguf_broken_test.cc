// Broken and hostile GGUF files: each is refused with a message, none crashes, none makes the
// reader allocate what the file does not contain.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "base/env.h"
#include "model/gguf.h"
#include "support/gguf_writer.h"

namespace cairn {
namespace {

using testing::Encode;
using testing::EncodeString;
using testing::GgufType;
using testing::GgufWriter;

constexpr uint32_t kArray = static_cast<uint32_t>(GgufType::kArray);
constexpr uint32_t kString = static_cast<uint32_t>(GgufType::kString);
constexpr uint32_t kU8 = static_cast<uint32_t>(GgufType::kU8);

const std::vector<float> kSixFloats = {1, 2, 3, 4, 5, 6};

GgufWriter SmallFile() {
  const std::vector<std::string> words = {"a", "b", "longer word"};
  const std::vector<int32_t> numbers = {3, -1, 0};
  GgufWriter writer;
  writer.String("general.architecture", "llama")
      .U32("llama.block_count", 2)
      .F32("llama.rope.freq_base", 10000.0f)
      .Bool("flag", true)
      .Strings("tokenizer.ggml.tokens", words)
      .I32s("tokenizer.ggml.token_type", numbers)
      .Raw("nested", kArray,
           Encode(kArray) + Encode(uint64_t{2}) + Encode(kU8) + Encode(uint64_t{2}) + "xy" +
               Encode(kString) + Encode(uint64_t{1}) + EncodeString("z"))
      .TensorF32s("token_embd.weight", {3, 2}, kSixFloats)
      .TensorF32s("output_norm.weight", {6}, kSixFloats);
  return writer;
}

// Touches all a caller could: every value through every accessor, every byte of every tensor.
void UseEverything(const GgufFile& file) {
  uint64_t sum = 0;
  for (const auto& entry : file.entries()) {
    sum += GgufFile::Describe(entry).size();
    (void)file.FindU64(entry.key).ok();
    (void)file.FindI64(entry.key).ok();
    (void)file.FindF32(entry.key).ok();
    (void)file.FindBool(entry.key).ok();
    (void)file.FindString(entry.key).ok();
    (void)file.GetI64Array(entry.key).ok();
    (void)file.GetF32Array(entry.key).ok();
    const auto strings = file.GetStringArray(entry.key);
    if (!strings.ok()) continue;
    for (const std::string_view text : *strings) {
      for (const char c : text) sum += static_cast<unsigned char>(c);
    }
  }
  for (const GgufTensor& tensor : file.tensors()) {
    EXPECT_EQ(file.FindTensor(tensor.name), &tensor);
    for (const std::byte b : tensor.bytes) sum += std::to_integer<unsigned>(b);
  }
  EXPECT_NE(sum, 1u);  // the sum is used, so no read is optimised away
}

Status Open(const GgufWriter& writer, const GgufLimits& limits = {}) {
  const std::vector<std::byte> bytes = writer.Bytes();
  return GgufFile::FromBytes(bytes, limits).status();
}

struct BrokenCase {
  const char* name;
  GgufWriter file;
  StatusCode code;
  const char* message;  // part of it
};

std::vector<BrokenCase> BrokenHeaders() {
  const StatusCode lost = StatusCode::kDataLoss;
  const StatusCode exhausted = StatusCode::kResourceExhausted;
  const StatusCode unsupported = StatusCode::kUnsupported;
  return {
      {"version 1", GgufWriter(1), unsupported, "version: got 1, wanted 2 or 3"},
      {"version 4", GgufWriter(4), unsupported, "version: got 4, wanted 2 or 3"},
      {"big endian", GgufWriter(0x03000000), unsupported, "got big endian"},
      {"keys", SmallFile().LieKeyCount(16000), lost, "truncated"},
      {"many keys", SmallFile().LieKeyCount(~0ull), exhausted, "key count"},
      {"one key more", SmallFile().LieKeyCount(8), lost, "got"},
      {"tensors", SmallFile().LieTensorCount(60000), lost, "truncated"},
      {"many tensors", SmallFile().LieTensorCount(1ull << 60), exhausted, "tensor count"},
      {"one tensor more", SmallFile().LieTensorCount(3), lost, ""},
  };
}

std::vector<BrokenCase> BrokenKeys() {
  const StatusCode lost = StatusCode::kDataLoss;
  const StatusCode exhausted = StatusCode::kResourceExhausted;
  const auto array = [](uint32_t type, uint64_t count, const std::string& rest) {
    return Encode(type) + Encode(count) + rest;
  };
  std::string deep;
  for (int i = 0; i < 1000; ++i) deep += array(kArray, 1, "");
  return {
      {"twice", SmallFile().U32("flag", 1), lost, "key 'flag': got it twice"},
      {"empty key", SmallFile().U32("", 1), lost, "empty name"},
      {"long key", SmallFile().U32(std::string(2000, 'k'), 1), exhausted, "wanted at most 1024"},
      {"value type", SmallFile().Raw("k", 13, "12345678"), lost, "value type at byte"},
      {"bool 2", SmallFile().Raw("k", 7, "\x02"), lost, "bool: got 2, wanted 0 or 1 (key 'k')"},
      {"string past the end", SmallFile().Raw("k", kString, Encode(1ull << 40)), lost, "(key 'k')"},
      {"string of 2^64 - 1", SmallFile().Raw("k", kString, Encode(~0ull)), lost, "truncated"},
      {"array of 2^64 - 1", SmallFile().Raw("k", kArray, array(kU8, ~0ull, "")), exhausted,
       "array length"},
      {"array of 2^61 u64", SmallFile().Raw("k", kArray, array(10, 1ull << 61, "")), exhausted,
       "array length"},
      {"array past the end", SmallFile().Raw("k", kArray, array(10, 1 << 20, "")), lost,
       "truncated"},
      {"strings past the end", SmallFile().Raw("k", kArray, array(kString, 1 << 20, "")), lost, ""},
      {"element type", SmallFile().Raw("k", kArray, array(77, 1, "x")), lost,
       "array element type at byte"},
      {"deep", SmallFile().Raw("k", kArray, deep), exhausted, "nested arrays"},
      {"alignment 0", SmallFile().U32("general.alignment", 0), lost, "general.alignment: got 0"},
      {"alignment 24", SmallFile().U32("general.alignment", 24), lost, "wanted a power of two"},
      {"alignment 2^31", SmallFile().U32("general.alignment", 1u << 31), lost, "general.alignment"},
      {"alignment text", SmallFile().String("general.alignment", "32"),
       StatusCode::kInvalidArgument, "got string, wanted an integer"},
  };
}

std::vector<BrokenCase> BrokenTensors() {
  const StatusCode lost = StatusCode::kDataLoss;
  const std::span<const std::byte> none;
  const auto with = [&](uint32_t type, std::vector<uint64_t> dims) {
    return SmallFile().Tensor("bad", type, std::move(dims), none);
  };
  return {
      {"twice", SmallFile().TensorF32s("output_norm.weight", {6}, kSixFloats), lost,
       "tensor 'output_norm.weight': got it twice"},
      {"no name", SmallFile().TensorF32s("", {6}, kSixFloats), lost, "empty name"},
      {"no dimension", with(0, {}), lost, "got 0 dimensions"},
      {"five dimensions", with(0, {1, 1, 1, 1, 1}), lost, "got 5 dimensions"},
      {"dimension 0", with(0, {4, 0}), lost, "dimension of 0"},
      {"2^64 elements", with(0, {1ull << 32, 1ull << 32}), lost, "2^63"},
      {"2^63 elements", with(0, {1ull << 63}), lost, "2^63"},
      {"wrap to small", with(0, {(1ull << 32) + 1, (1ull << 32) - 1, 1ull << 32}), lost, "2^63"},
      {"2^62 float64", with(28, {1ull << 62}), lost, "more than 2^64"},
      {"rows of 40 in Q4_0", with(2, {40, 2}), lost, "wanted a multiple of 32 for Q4_0"},
      {"past the end", with(0, {1000}), lost, "truncated"},
      {"offset past the end", SmallFile().LieLastOffset(1 << 20), lost, "tensor 'output_norm"},
      {"offset 2^64 - 32", SmallFile().LieLastOffset(~0ull - 31), lost, "tensor 'output_norm"},
      {"odd offset", SmallFile().LieLastOffset(4), lost, "wanted a multiple of 32"},
      {"overlap", SmallFile().LieLastOffset(0), lost, "overlapping"},
      {"offset of an unknown type", with(99, {1}).LieLastOffset(1 << 20), lost, "tensor 'bad'"},
  };
}

void ExpectRefused(const std::vector<BrokenCase>& cases) {
  for (const BrokenCase& c : cases) {
    const Status status = Open(c.file);
    EXPECT_FALSE(status.ok()) << c.name;
    EXPECT_EQ(status.code(), c.code) << c.name << ": " << status.ToString();
    EXPECT_NE(status.message().find(c.message), std::string::npos)
        << c.name << ": " << status.ToString();
    EXPECT_EQ(status.message().rfind("[gguf] ", 0), 0u) << status.message();
  }
}

TEST(GgufBroken, HeadersAreRefused) { ExpectRefused(BrokenHeaders()); }
TEST(GgufBroken, KeysAreRefused) { ExpectRefused(BrokenKeys()); }
TEST(GgufBroken, TensorsAreRefused) { ExpectRefused(BrokenTensors()); }

TEST(GgufBroken, LimitsAreInOnePlaceAndHold) {
  EXPECT_TRUE(Open(SmallFile()).ok());
  const std::vector<std::pair<const char*, GgufLimits>> cases = {
      {"key_count_max", {.key_count_max = 6}},
      {"tensor_count_max", {.tensor_count_max = 1}},
      {"name_bytes_max", {.name_bytes_max = 10}},
      {"string_bytes_max", {.string_bytes_max = 4}},
      {"array_elements_max", {.array_elements_max = 2}},
      {"array_depth_max", {.array_depth_max = 1}},
  };
  for (const auto& [name, limits] : cases) {
    EXPECT_EQ(Open(SmallFile(), limits).code(), StatusCode::kResourceExhausted) << name;
  }
  EXPECT_FALSE(Open(GgufWriter(3, 64), {.alignment_max = 32}).ok());
}

TEST(GgufBroken, EveryTruncationIsRefused) {
  const std::vector<std::byte> bytes = SmallFile().Bytes();
  for (size_t size = 0; size < bytes.size(); ++size) {
    const std::vector<std::byte> part(bytes.begin(), bytes.begin() + static_cast<long>(size));
    EXPECT_FALSE(GgufFile::FromBytes(part).ok()) << size;
  }
}

std::vector<std::byte> ReadBytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

TEST(GgufBroken, TruncatedModelsAreRefused) {
  const std::vector<std::byte> bytes = ReadBytes("tests/golden/data/quant/llama-a/Q4_0.gguf");
  ASSERT_GT(bytes.size(), 90000u);
  for (size_t size = 0; size < bytes.size(); size += 97) {
    // An own allocation, so that a sanitizer sees the first byte read past the end.
    const std::vector<std::byte> part(bytes.begin(), bytes.begin() + static_cast<long>(size));
    EXPECT_FALSE(GgufFile::FromBytes(part).ok()) << size;
  }
}

// Flips bytes: all over a small file, and in the header and the metadata of a real one.
TEST(GgufBroken, RandomByteFlipsNeverCrash) {
  const std::vector<std::byte> small = SmallFile().Bytes();
  const std::vector<std::byte> model = ReadBytes("tests/golden/data/quant/llama-a/Q4_0.gguf");
  int opened = 0;
  int refused = 0;
  for (uint32_t seed = 0; seed < 2000; ++seed) {
    std::mt19937 random(seed);
    std::vector<std::byte> bytes = seed % 4 == 0 ? model : small;
    const size_t reach = seed % 8 == 0 ? 4096 : bytes.size();
    const uint32_t flips = 1 + random() % 4;
    for (uint32_t i = 0; i < flips; ++i) bytes[random() % reach] = std::byte(random() & 0xff);
    auto file = GgufFile::FromBytes(bytes);
    if (!file.ok()) {
      EXPECT_FALSE(file.status().message().empty());
      ++refused;
      continue;
    }
    ++opened;
    UseEverything(*file);
  }
  EXPECT_GT(opened, 100);
  EXPECT_GT(refused, 100);
}

// 2^24 claimed elements, 2^16 claimed tensors: refused before anything of that size is allocated.
TEST(GgufBroken, HostileCountsCostNoMemory) {
  const uint64_t before = ResidentBytes();
  std::vector<std::byte> bytes = SmallFile()
                                     .Raw("k", kArray, Encode(kString) + Encode(uint64_t{16} << 20))
                                     .LieTensorCount(65536)
                                     .LieKeyCount(16384)
                                     .Bytes();
  EXPECT_FALSE(GgufFile::FromBytes(bytes).ok());
  bytes = SmallFile().Raw("k", kArray, Encode(kString) + Encode(uint64_t{16} << 20)).Bytes();
  EXPECT_FALSE(GgufFile::FromBytes(bytes).ok());
  EXPECT_LT(ResidentBytes(), before + (8u << 20));
}

}  // namespace
}  // namespace cairn
