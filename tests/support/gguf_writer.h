// Writes small GGUF files in memory, for tests: honest ones, and (through the raw setters) broken
// ones. Threads: used by one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cairn::testing {

// GGUF's numbers for value types and for the tensor types that tests write.
enum class GgufType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64
};
inline constexpr uint32_t kTensorF32 = 0, kTensorF16 = 1, kTensorQ4_0 = 2, kTensorQ8_0 = 8,
                          kTensorBF16 = 30;

class GgufWriter {
 public:
  explicit GgufWriter(uint32_t version = 3, uint64_t alignment = 32)
      : version_(version), alignment_(alignment) {}

  GgufWriter& U32(std::string_view key, uint32_t value);
  GgufWriter& U64(std::string_view key, uint64_t value);
  GgufWriter& I32(std::string_view key, int32_t value);
  GgufWriter& F32(std::string_view key, float value);
  GgufWriter& F64(std::string_view key, double value);
  GgufWriter& Bool(std::string_view key, bool value);
  GgufWriter& String(std::string_view key, std::string_view value);
  GgufWriter& Strings(std::string_view key, std::span<const std::string> values);
  GgufWriter& I32s(std::string_view key, std::span<const int32_t> values);
  GgufWriter& F32s(std::string_view key, std::span<const float> values);
  // Any value, already encoded: for broken files.
  GgufWriter& Raw(std::string_view key, uint32_t type, std::string_view encoded);

  // dims in GGUF order (fastest first); bytes in the file's encoding.
  GgufWriter& Tensor(std::string_view name, uint32_t type, std::vector<uint64_t> dims,
                     std::span<const std::byte> bytes);
  GgufWriter& TensorF32s(std::string_view name, std::vector<uint64_t> dims,
                         std::span<const float> values);

  // Lies for the next Bytes(): counts in the header, offset of the last tensor.
  GgufWriter& LieKeyCount(uint64_t count);
  GgufWriter& LieTensorCount(uint64_t count);
  GgufWriter& LieLastOffset(uint64_t offset);

  std::vector<std::byte> Bytes() const;
  // Writes Bytes() to `path`; true on success.
  bool Write(const std::string& path) const;

 private:
  struct TensorRecord {
    std::string name;
    uint32_t type;
    std::vector<uint64_t> dims;
    uint64_t offset;
  };

  uint32_t version_;
  uint64_t alignment_;
  uint64_t key_count_ = 0;
  std::string keys_;  // encoded
  std::vector<TensorRecord> tensors_;
  std::string data_;
  std::optional<uint64_t> key_count_lie_, tensor_count_lie_, last_offset_lie_;
};

// Little-endian encoding of one number, and of a string with its length.
template <typename T>
std::string Encode(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}
std::string EncodeString(std::string_view text);

}  // namespace cairn::testing
