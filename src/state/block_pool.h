// The KV store: blocks of 64 positions of all full-attention layers, reference-counted.
//
// A block is written by one live sequence, row by row, each row once; checkpoints and other
// sequences share it by reference. Whoever wants to go on from the middle of a block copies it
// first (sequence_state.h).
//
// Owns: the memory of all blocks. Threads: the engine thread only, references included. Invariants:
// free + held == total; a block is all zero when allocated. A layout without KV has no blocks:
// block_bytes() == 0, and Allocate must not be called.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/status.h"
#include "state/slab.h"
#include "state/state_layout.h"

namespace cairn {

class BlockPool;

// A counted reference to a block; empty if default-constructed or moved from. The pool outlives it.
class BlockRef {
 public:
  BlockRef() = default;
  BlockRef(const BlockRef& other);
  BlockRef(BlockRef&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), index_(other.index_) {}
  BlockRef& operator=(BlockRef other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(index_, other.index_);
    return *this;
  }
  ~BlockRef();

  explicit operator bool() const { return pool_ != nullptr; }
  std::byte* data() const;                   // block_bytes() long; REQUIRES: not empty
  uint32_t index() const { return index_; }  // dense, unique among held blocks of the pool
  uint32_t use_count() const;                // references to this block
  friend bool operator==(const BlockRef& a, const BlockRef& b) {
    return a.pool_ == b.pool_ && (a.pool_ == nullptr || a.index_ == b.index_);
  }

 private:
  friend class BlockPool;
  BlockRef(BlockPool* pool, uint32_t index) : pool_(pool), index_(index) {}

  BlockPool* pool_ = nullptr;
  uint32_t index_ = 0;
};

class BlockPool {
 public:
  explicit BlockPool(const StateLayout& layout) : slab_(layout.block_bytes()) {}

  // A zeroed block. Errors: kResourceExhausted.
  Result<BlockRef> Allocate();

  size_t block_bytes() const { return slab_.item_bytes(); }
  size_t held() const { return slab_.held(); }  // distinct blocks referenced by anyone
  size_t free() const { return slab_.free(); }
  size_t total() const { return slab_.total(); }
  uint64_t held_bytes() const { return static_cast<uint64_t>(held()) * block_bytes(); }
  // In whole pages, as the operating system counts.
  size_t resident_block_bytes() const { return slab_.stride_bytes(); }
  uint64_t resident_bytes() const { return uint64_t{held()} * resident_block_bytes(); }
  // Freed ones whose memory is kept for the next ones, and its end.
  uint64_t warm_bytes() const { return warm() * resident_block_bytes(); }
  uint64_t warm() const { return slab_.warm(); }
  void ReleaseWarm() { slab_.ReleaseWarm(); }
  bool WarmOne() { return slab_.WarmOne(); }  // false: nothing to do
  // Allocate fails while held() >= limit. Also the way tests make an allocation fail.
  void set_limit(std::optional<size_t> limit) { slab_.set_limit(limit); }
  // free + held == total and every held block has a reference. Aborts otherwise.
  void CheckInvariants() const;

 private:
  friend class BlockRef;
  Slab slab_;
  std::vector<uint32_t> use_counts_;  // by block index
};

inline BlockRef::BlockRef(const BlockRef& other) : pool_(other.pool_), index_(other.index_) {
  if (pool_ != nullptr) ++pool_->use_counts_[index_];
}
inline BlockRef::~BlockRef() {
  if (pool_ != nullptr && --pool_->use_counts_[index_] == 0) pool_->slab_.Free(index_);
}
inline std::byte* BlockRef::data() const { return pool_->slab_.data(index_); }
inline uint32_t BlockRef::use_count() const { return pool_->use_counts_[index_]; }

}  // namespace cairn
