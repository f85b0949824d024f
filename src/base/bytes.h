// Memory and sizes: aligned buffers, overflow-checked products, size strings ("512M", "2GiB").
// Threads: an AlignedBuffer is owned by one holder; moving it moves the ownership.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace cairn {

// Zeroed bytes, 64-byte aligned (a cache line, an AVX-512 vector). Owns its memory. Move-only.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(size_t size_bytes);
  AlignedBuffer(AlignedBuffer&& other) noexcept;
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept;
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;
  ~AlignedBuffer();

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  template <typename T>
  T* as() {
    return reinterpret_cast<T*>(data_);
  }
  template <typename T>
  const T* as() const {
    return reinterpret_cast<const T*>(data_);
  }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// a * b, or nullopt on overflow of uint64.
std::optional<uint64_t> CheckedMul(uint64_t a, uint64_t b);
// a + b, or nullopt on overflow of uint64.
std::optional<uint64_t> CheckedAdd(uint64_t a, uint64_t b);

inline size_t AlignUp(size_t n, size_t alignment) {
  return (n + alignment - 1) / alignment * alignment;
}

// "1234", "512K", "512M", "2G", "2GiB", "2GB" -> bytes. K/M/G/T are powers of 1024 with or without
// "iB"; "kB/MB/GB/TB" are powers of 1000.
Result<uint64_t> ParseSize(std::string_view text);
// 1536 -> "1.5 KiB"; for people.
std::string FormatSize(uint64_t bytes);

// A name from a file, quoted and shortened for a message: control bytes are escaped, so a hostile
// name cannot write to a terminal.
std::string QuoteForMessage(std::string_view text);

}  // namespace cairn
