// A safetensors file, mapped read-only and checked completely at Open: every tensor has a known
// type, a shape that fits its bytes, and a place of its own; together they fill the file without
// gap. Source of the format: the safetensors specification (huggingface/safetensors, README).
//
// Owns: the mapping; tensors are views into it. Threads: immutable after Open.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "kernels/weight_type.h"
#include "model/mapped_file.h"

namespace cairn {

struct SafetensorsLimits {
  uint64_t header_bytes_max = 100'000'000;  // the specification's own
  uint64_t tensor_count_max = 1 << 18;
  uint64_t name_bytes_max = 1024;
  uint64_t dims_max = 8;
};

struct SafetensorsTensor {
  std::string name;
  std::string_view dtype;      // "BF16", one of the format's names
  std::vector<int64_t> shape;  // slowest first
  std::span<const std::byte> bytes;

  int64_t element_count() const;
};

// F32, F16 and BF16; nullopt for the types without kernels.
std::optional<WeightType> WeightTypeFromDtype(std::string_view dtype);

class SafetensorsFile {
 public:
  // Errors: NotFound, DataLoss (broken), Unsupported (an unknown type), ResourceExhausted.
  static Result<SafetensorsFile> Open(const std::string& path,
                                      const SafetensorsLimits& limits = {});
  // The same over bytes of the caller, which must outlive the result (tests, fuzzing).
  static Result<SafetensorsFile> FromBytes(std::span<const std::byte> bytes,
                                           const SafetensorsLimits& limits = {});

  std::span<const SafetensorsTensor> tensors() const { return tensors_; }  // in file order
  uint64_t size_bytes() const { return bytes_.size(); }
  bool Contains(std::span<const std::byte> bytes) const;
  // A hint that the pages under `bytes` are not needed soon.
  void ReleasePages(std::span<const std::byte> bytes) const;

 private:
  Status Parse(std::span<const std::byte> bytes, const SafetensorsLimits& limits);

  MappedFile map_;
  std::span<const std::byte> bytes_;
  std::vector<SafetensorsTensor> tensors_;
};

}  // namespace cairn
