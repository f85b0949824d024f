// The live state of one sequence: its block table, its state buffer and how many tokens they hold.
//
// It grows by Reserve (room) and Advance (rows were written); it never shrinks, shifts or rewinds.
// A checkpoint is taken by sharing blocks() and copying or moving the buffer.
//
// Restoring inside a block copies that whole block, rows beyond the restore point included. They
// belong to another branch, and that is exact: a row's attention takes no key behind its own
// position (StoreKv writes a whole chunk before Attend, so a block with later rows in it is the
// normal case), and each such row is overwritten by its own token before any row may look at it.
//
// Owns: references to its blocks, its buffer. Threads: the engine thread. Move-only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "state/block_pool.h"
#include "state/state_pool.h"

namespace cairn {

class SequenceState {
 public:
  // The empty state (length 0). Errors: kResourceExhausted.
  static Result<SequenceState> Create(BlockPool& blocks, StatePool& states);
  // The state after `length` tokens. `shared` cover [0, length): whole blocks are shared, the last
  // one is copied if `length` lies inside it. `state` (a buffer's bytes) is copied; empty on
  // trimmable layouts where no hidden row is kept at `length`: then the hidden row is zero until
  // the next token. Errors: kResourceExhausted; nothing is held then.
  static Result<SequenceState> Restore(BlockPool& blocks, StatePool& states, int64_t length,
                                       std::span<const BlockRef> shared,
                                       std::span<const std::byte> state);

  int64_t length() const { return length_; }  // tokens in the state
  int64_t capacity() const;                   // positions the blocks cover; INT64_MAX without KV

  // Blocks for [0, length() + rows). Errors: kResourceExhausted; then nothing changed.
  Status Reserve(int64_t rows);
  // `rows` more tokens were written. REQUIRES: reserved.
  void Advance(int64_t rows);

  // For ForwardSlice: one pointer a block; valid until the next Reserve.
  std::span<std::byte* const> block_pointers() const { return pointers_; }
  std::byte* state() const { return buffer_.data(); }
  // For PrefixTree: may cover more than length() positions. Empty if the layout has no KV.
  std::span<const BlockRef> blocks() const { return blocks_; }
  // The buffer, for a checkpoint at length(); empty if the sequence was restored where no hidden
  // row is kept and no token came since, so that there is no complete state to give. The sequence
  // is over: only blocks() and length() may still be asked.
  StateBuffer TakeState() { return complete_ ? std::move(buffer_) : StateBuffer(); }

 private:
  SequenceState(BlockPool& blocks, StateBuffer buffer)
      : pool_(&blocks), buffer_(std::move(buffer)) {}
  Status Append();

  BlockPool* pool_;
  std::vector<BlockRef> blocks_;
  std::vector<std::byte*> pointers_;  // blocks_[i].data()
  StateBuffer buffer_;
  int64_t length_ = 0;
  bool complete_ = true;  // the buffer is the state at length_, hidden row included
};

}  // namespace cairn
