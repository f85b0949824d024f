// The one pass over the bytes of a GGUF file that checks everything and fills a GgufFile.
// Private to this folder. Threads: used by one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "model/gguf.h"

namespace cairn {

class GgufParser {
 public:
  GgufParser(std::span<const std::byte> bytes, const GgufLimits& limits)
      : bytes_(bytes), limits_(limits) {}

  // Fills everything of `file` but its path and mapping.
  Status Parse(GgufFile* file);

 private:
  Status ParseHeader(GgufFile* file);
  Status ParseEntries(GgufFile* file);
  Status ParseEntry(GgufFile::Entry* entry);
  Status ParseTensors(GgufFile* file);
  Status ParseTensor(GgufTensor* tensor, uint64_t* offset);
  Status ReadAlignment(const GgufFile& file);
  Status PlaceTensors(GgufFile* file);

  // Each moves the cursor past what it read. `what` names the thing for the message.
  template <typename T>
  Status ReadNumber(const char* what, T* value) {
    std::span<const std::byte> raw;
    RETURN_IF_ERROR(ReadBytes(what, sizeof(T), &raw));
    std::memcpy(value, raw.data(), sizeof(T));
    return {};
  }
  Status ReadBytes(const char* what, uint64_t count, std::span<const std::byte>* out);
  Status ReadString(const char* what, uint64_t bytes_max, std::string_view* out);
  Status ReadValueType(const char* what, GgufValueType* type);
  // Steps over `count` values of `type`, checking what lies inside.
  Status SkipValues(GgufValueType type, uint64_t count, int depth);
  Status CheckBools(std::span<const std::byte> values);

  uint64_t remaining() const { return bytes_.size() - position_; }

  const std::span<const std::byte> bytes_;
  const GgufLimits limits_;
  size_t position_ = 0;
  uint64_t tensor_count_ = 0;
  uint64_t key_count_ = 0;
  uint64_t array_elements_left_ = 0;  // of the array being walked
  uint64_t alignment_ = 32;           // the format's default
  std::vector<uint64_t> offsets_;     // of tensors, from the start of the data
};

}  // namespace cairn
