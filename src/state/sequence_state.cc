#include "state/sequence_state.h"

#include <cstring>
#include <limits>

namespace cairn {
Result<SequenceState> SequenceState::Create(BlockPool& blocks, StatePool& states) {
  ASSIGN_OR_RETURN(StateBuffer buffer, states.Allocate());
  return SequenceState(blocks, std::move(buffer));
}

Result<SequenceState> SequenceState::Restore(BlockPool& blocks, StatePool& states, int64_t length,
                                             std::span<const BlockRef> shared,
                                             std::span<const std::byte> state) {
  ASSIGN_OR_RETURN(SequenceState restored, Create(blocks, states));
  restored.length_ = length;
  restored.complete_ = !state.empty();
  if (blocks.block_bytes() > 0) {
    const size_t whole = static_cast<size_t>(length / kBlockTokens);
    const bool has_part = length % kBlockTokens != 0;
    CHECK(shared.size() >= whole + has_part);
    for (const BlockRef& block : shared.first(whole)) {
      restored.blocks_.push_back(block);
      restored.pointers_.push_back(block.data());
    }
    if (has_part) {
      RETURN_IF_ERROR(restored.Append());
      std::memcpy(restored.pointers_.back(), shared[whole].data(), blocks.block_bytes());
    }
  }
  CHECK(state.empty() || state.size() == states.buffer_bytes());
  if (!state.empty()) std::memcpy(restored.state(), state.data(), state.size());
  return restored;
}

int64_t SequenceState::capacity() const {
  if (pool_->block_bytes() == 0) return std::numeric_limits<int64_t>::max();
  return static_cast<int64_t>(blocks_.size()) * kBlockTokens;
}

Status SequenceState::Reserve(int64_t rows) {
  if (pool_->block_bytes() == 0) return {};
  const size_t before = blocks_.size();
  while (capacity() < length_ + rows) {
    if (Status appended = Append(); !appended.ok()) {
      blocks_.resize(before);
      pointers_.resize(before);
      return appended;
    }
  }
  return {};
}

Status SequenceState::Append() {
  ASSIGN_OR_RETURN(BlockRef block, pool_->Allocate());
  pointers_.push_back(block.data());
  blocks_.push_back(std::move(block));
  return {};
}

void SequenceState::Advance(int64_t rows) {
  CHECK(length_ + rows <= capacity());
  length_ += rows;
  complete_ |= rows > 0;
}

}  // namespace cairn
