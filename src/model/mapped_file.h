// A whole file mapped read-only.
// Owns: the mapping; moving it moves the ownership. Threads: immutable after Open.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/status.h"

namespace cairn {

class MappedFile {
 public:
  MappedFile() = default;  // maps nothing
  // Errors: NotFound (no such file), InvalidArgument (not a regular file), DataLoss (empty),
  // Internal.
  static Result<MappedFile> Open(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  // Hints for the pages that hold `part`, which must lie in bytes().
  void Prefetch(std::span<const std::byte> part) const;
  void Release(std::span<const std::byte> part) const;

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace cairn
