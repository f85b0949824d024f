// State buffers: everything of fixed size that one sequence remembers (recurrent, conv and window
// parts, and the final hidden row), layout.buffer_bytes() each.
//
// One pool serves live sequences, taps and checkpoints alike, so a finished sequence's buffer
// *moves* into a checkpoint without a copy.
//
// Owns: the memory of all buffers. Threads: the engine thread only, handles included. Invariants:
// free + held == total; a buffer is all zero when allocated (the state before the first token).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "base/status.h"
#include "state/slab.h"
#include "state/state_layout.h"

namespace cairn {

class StatePool;

// The only handle of one buffer: one owner, one writer. Move-only; empty if default-constructed or
// moved from. The pool outlives it.
class StateBuffer {
 public:
  StateBuffer() = default;
  StateBuffer(StateBuffer&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), index_(other.index_) {}
  StateBuffer& operator=(StateBuffer&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(index_, other.index_);
    return *this;
  }
  ~StateBuffer();

  explicit operator bool() const { return pool_ != nullptr; }
  std::byte* data() const;  // buffer_bytes() long, 64-byte aligned; REQUIRES: not empty

 private:
  friend class StatePool;
  StateBuffer(StatePool* pool, uint32_t index) : pool_(pool), index_(index) {}

  StatePool* pool_ = nullptr;
  uint32_t index_ = 0;
};

class StatePool {
 public:
  explicit StatePool(const StateLayout& layout) : slab_(layout.buffer_bytes()) {}

  // A zeroed buffer. Errors: kResourceExhausted.
  Result<StateBuffer> Allocate();

  size_t buffer_bytes() const { return slab_.item_bytes(); }
  size_t held() const { return slab_.held(); }
  size_t free() const { return slab_.free(); }
  size_t total() const { return slab_.total(); }
  uint64_t held_bytes() const { return static_cast<uint64_t>(held()) * buffer_bytes(); }
  // In whole pages, as the operating system counts.
  size_t resident_buffer_bytes() const { return slab_.stride_bytes(); }
  uint64_t resident_bytes() const { return uint64_t{held()} * resident_buffer_bytes(); }
  // Freed ones whose memory is kept for the next ones, and its end.
  uint64_t warm_bytes() const { return warm() * resident_buffer_bytes(); }
  uint64_t warm() const { return slab_.warm(); }
  void ReleaseWarm() { slab_.ReleaseWarm(); }
  // Allocate fails while held() >= limit. Also the way tests make an allocation fail.
  void set_limit(std::optional<size_t> limit) { slab_.set_limit(limit); }

 private:
  friend class StateBuffer;
  Slab slab_;
};

inline StateBuffer::~StateBuffer() {
  if (pool_ != nullptr) pool_->slab_.Free(index_);
}
inline std::byte* StateBuffer::data() const { return pool_->slab_.data(index_); }

}  // namespace cairn
