// Fixed-size items in lazily mapped memory; what block_pool.h and state_pool.h are made of.
//
// Items lie in chunks of anonymous memory that are mapped when needed and keep their addresses for
// the slab's life. A freed item's pages go back to the operating system at once (MADV_DONTNEED), so
// resident memory follows what is held, and an item is all zero whenever it is handed out: fresh
// pages are. Small items do not use huge pages for the same reason: one
// touched item must not make its neighbours resident. Large ones do (slab.cc says why that is
// right), and the last few freed ones stay resident ("warm"), because mapping them anew costs up
// to 2 ms a MiB in a virtual machine whose host has to find the memory; they are zeroed by hand.
//
// Owns: the mapped chunks. Threads: one thread (the engine's). Invariants: free + held == total.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/status.h"

namespace cairn {

class Slab {
 public:
  explicit Slab(size_t item_bytes);  // 0: Allocate must not be called
  ~Slab();                           // REQUIRES: nothing is held
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;

  // The index of a zeroed item. Errors: kResourceExhausted (limit reached, or no address space).
  Result<uint32_t> Allocate();
  void Free(uint32_t index);  // REQUIRES: held
  std::byte* data(uint32_t index) const {
    return chunks_[index / items_per_chunk_] + (index % items_per_chunk_) * stride_;
  }

  size_t item_bytes() const { return item_bytes_; }
  size_t stride_bytes() const { return stride_; }  // resident memory of an item that is all touched
  size_t held() const { return total_ - free_.size(); }
  size_t free() const { return free_.size(); }
  size_t total() const { return total_; }  // items in mapped chunks
  size_t warm() const { return warm_; }    // free items that are resident
  // Makes one more free item resident ahead of its use. False, and nothing done, where items are
  // small, enough are warm, or none of the mapped chunks is left.
  bool WarmOne();
  void ReleaseWarm();  // gives them back to the operating system
  // Allocate fails while held() >= limit; nullopt (the default) = no limit.
  void set_limit(std::optional<size_t> limit) { limit_ = limit; }

 private:
  Status Grow();
  void GiveBack(uint32_t index);

  const size_t item_bytes_;
  const size_t stride_;  // item_bytes in whole pages (huge ones for large items)
  const bool huge_pages_;
  const size_t items_per_chunk_;
  std::vector<std::byte*> chunks_;                  // first item of each mapping
  std::vector<std::pair<void*, size_t>> mappings_;  // as munmap wants them
  // A stack; its capacity is total_, so Free never allocates. The warm_ last ones are warm.
  std::vector<uint32_t> free_;
  size_t warm_ = 0;
  size_t total_ = 0;
  std::optional<size_t> limit_;
};

}  // namespace cairn
