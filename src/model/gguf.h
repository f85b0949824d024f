// A GGUF file (versions 2 and 3, little endian), mapped read-only and checked completely at Open:
// after that, every string, array and tensor lies inside the file, and nothing here can fail for
// another reason than a key of the wrong type. Source of the format: the GGUF specification.
//
// A hostile file costs at most GgufLimits and its own size: counts are checked against the bytes
// that are left before anything is allocated. Array metadata is kept as a view and walked on
// demand, so 250,000 token strings open in milliseconds.
//
// Owns: the mapping. Strings, arrays and tensors are views into it and live as long as the file.
// Threads: immutable after Open; any thread may read. ReleasePages may be called by any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/gguf_types.h"
#include "model/mapped_file.h"
#include "model/model_file.h"

namespace cairn {

// Everything a file could exaggerate. The defaults are an order of magnitude above published files.
struct GgufLimits {
  uint64_t key_count_max = 16384;
  uint64_t tensor_count_max = 65536;
  uint64_t name_bytes_max = 1024;             // of a key or of a tensor name
  uint64_t string_bytes_max = 64ull << 20;    // of one string value
  uint64_t array_elements_max = 16ull << 20;  // of one array, nested elements included
  int array_depth_max = 4;                    // array of array of ...
  uint64_t alignment_max = 1ull << 20;        // of tensor data
};

struct GgufTensor {
  std::string_view name;
  uint32_t ggml_type = 0;
  std::vector<int64_t> dims;         // GGUF order, fastest first: a matrix W [n, k] has dims {k, n}
  std::span<const std::byte> bytes;  // empty if the type is unknown (its size cannot be told)

  int64_t element_count() const;  // product of dims
};

class GgufFile final : public ModelFile {
 public:
  // Maps and checks the file. Errors: NotFound (no such file), DataLoss (broken), Unsupported
  // (version, byte order), ResourceExhausted (beyond limits).
  static Result<GgufFile> Open(const std::string& path, const GgufLimits& limits = {});
  // The same over bytes of the caller, which must outlive the result (tests, fuzzing).
  static Result<GgufFile> FromBytes(std::span<const std::byte> bytes,
                                    const GgufLimits& limits = {});

  uint32_t version() const { return version_; }
  uint64_t size_bytes() const override { return bytes_.size(); }

  std::span<const GgufTensor> tensors() const { return tensors_; }  // in file order
  const GgufTensor* FindTensor(std::string_view name) const;        // null if absent
  Result<const GgufTensor*> GetTensor(std::string_view name) const;

  bool HasTensor(std::string_view name) const override { return FindTensor(name) != nullptr; }
  Result<std::vector<int64_t>> TensorShape(std::string_view name) const override;
  std::vector<TensorInfo> ListTensors() const override;
  std::unique_ptr<TensorSource> OpenTensors() const override;

  // Tells the system that the pages under `bytes` are not needed soon (they were repacked); they
  // are read from the file again if touched. A hint: no effect for FromBytes.
  void ReleasePages(std::span<const std::byte> bytes) const;
  // Tells the system to read ahead.
  void PrefetchPages(std::span<const std::byte> bytes) const;

 private:
  friend class GgufParser;
  GgufFile() : ModelFile("gguf") {}
  MappedFile map_;
  std::span<const std::byte> bytes_;
  uint32_t version_ = 0;
  std::vector<GgufTensor> tensors_;
  std::vector<uint32_t> tensor_order_;  // indices of tensors_, sorted by name
};

}  // namespace cairn
