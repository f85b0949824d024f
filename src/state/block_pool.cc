#include "state/block_pool.h"

namespace cairn {

Result<BlockRef> BlockPool::Allocate() {
  ASSIGN_OR_RETURN(const uint32_t index, slab_.Allocate());
  if (use_counts_.size() < slab_.total()) {
    try {
      use_counts_.resize(slab_.total(), 0);
    } catch (...) {
      slab_.Free(index);
      throw;
    }
  }
  use_counts_[index] = 1;
  return BlockRef(this, index);
}

void BlockPool::CheckInvariants() const {
  size_t used = 0;
  for (uint32_t count : use_counts_) used += count > 0;
  CHECK(used == held());
  CHECK(free() + held() == total());
}

}  // namespace cairn
