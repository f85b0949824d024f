#include "state/sequence_state.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

namespace cairn {
namespace {

struct Pools {
  explicit Pools(size_t kv_bytes_per_token)
      : layout(StateLayout::Create(Parts(kv_bytes_per_token), 64).value()),
        blocks(layout),
        states(layout) {}
  static std::vector<StatePart> Parts(size_t kv) {
    std::vector<StatePart> parts{{0, Recurrent{256}}};
    if (kv > 0) parts.push_back({1, FullKv{kv}});
    return parts;
  }
  StateLayout layout;
  BlockPool blocks;
  StatePool states;
};

TEST(SequenceState, ReservesWholeBlocksAndCountsRows) {
  Pools pools(16);
  SequenceState sequence = SequenceState::Create(pools.blocks, pools.states).value();
  EXPECT_EQ(sequence.capacity(), 0);
  ASSERT_TRUE(sequence.Reserve(65).ok());
  EXPECT_EQ(sequence.capacity(), 128);
  EXPECT_EQ(sequence.length(), 0);
  sequence.Advance(65);
  ASSERT_TRUE(sequence.Reserve(63).ok());
  EXPECT_EQ(sequence.blocks().size(), 2u);
  ASSERT_TRUE(sequence.Reserve(64).ok());
  ASSERT_EQ(sequence.block_pointers().size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(sequence.block_pointers()[i], sequence.blocks()[i].data());
  }
}

TEST(SequenceState, FailedReserveChangesNothing) {
  Pools pools(16);
  SequenceState sequence = SequenceState::Create(pools.blocks, pools.states).value();
  ASSERT_TRUE(sequence.Reserve(64).ok());
  pools.blocks.set_limit(3);
  EXPECT_EQ(sequence.Reserve(64 * 5).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(sequence.capacity(), 64);
  EXPECT_EQ(sequence.block_pointers().size(), 1u);
  EXPECT_EQ(pools.blocks.held(), 1u);
}

TEST(SequenceState, RestoreSharesWholeBlocksAndCopiesThePart) {
  Pools pools(16);
  SequenceState first = SequenceState::Create(pools.blocks, pools.states).value();
  ASSERT_TRUE(first.Reserve(100).ok());
  for (size_t i = 0; i < 2; ++i) {
    std::memset(first.block_pointers()[i], 10 + static_cast<int>(i), 1024);
  }
  std::memset(first.state(), 5, pools.layout.buffer_bytes());
  first.Advance(100);
  const std::span<const std::byte> bytes(first.state(), pools.layout.buffer_bytes());

  SequenceState second =
      SequenceState::Restore(pools.blocks, pools.states, 100, first.blocks(), bytes).value();
  EXPECT_EQ(second.length(), 100);
  EXPECT_EQ(second.block_pointers()[0], first.block_pointers()[0]);
  EXPECT_NE(second.block_pointers()[1], first.block_pointers()[1]);
  EXPECT_EQ(std::memcmp(second.block_pointers()[1], first.block_pointers()[1], 1024), 0);
  EXPECT_NE(second.state(), first.state());
  EXPECT_EQ(std::memcmp(second.state(), first.state(), bytes.size()), 0);
  EXPECT_EQ(pools.blocks.held(), 3u);

  // At a block's end there is nothing to copy.
  SequenceState third =
      SequenceState::Restore(pools.blocks, pools.states, 64, first.blocks(), bytes).value();
  EXPECT_EQ(third.blocks().size(), 1u);
  EXPECT_EQ(pools.blocks.held(), 3u);
}

TEST(SequenceState, FailedRestoreHoldsNothing) {
  Pools pools(16);
  SequenceState first = SequenceState::Create(pools.blocks, pools.states).value();
  ASSERT_TRUE(first.Reserve(100).ok());
  pools.blocks.set_limit(2);
  EXPECT_FALSE(SequenceState::Restore(pools.blocks, pools.states, 70, first.blocks(), {}).ok());
  EXPECT_EQ(pools.blocks.held(), 2u);
  EXPECT_EQ(pools.states.held(), 1u);
  EXPECT_EQ(first.blocks()[0].use_count(), 1u);
  pools.states.set_limit(1);
  EXPECT_FALSE(SequenceState::Restore(pools.blocks, pools.states, 64, first.blocks(), {}).ok());
  EXPECT_EQ(first.blocks()[0].use_count(), 1u);
}

TEST(SequenceState, TheBufferMovesOutWithoutACopy) {
  Pools pools(16);
  SequenceState sequence = SequenceState::Create(pools.blocks, pools.states).value();
  const std::byte* where = sequence.state();
  StateBuffer buffer = sequence.TakeState();
  EXPECT_EQ(buffer.data(), where);
  EXPECT_EQ(pools.states.held(), 1u);
}

TEST(SequenceState, RestoredWithoutHiddenRowItHasNoStateToGive) {
  Pools pools(16);
  SequenceState first = SequenceState::Create(pools.blocks, pools.states).value();
  ASSERT_TRUE(first.Reserve(64).ok());
  first.Advance(64);
  const auto restore = [&] {
    return SequenceState::Restore(pools.blocks, pools.states, 63, first.blocks(), {}).value();
  };
  EXPECT_FALSE(restore().TakeState());
  SequenceState second = restore();
  ASSERT_TRUE(second.Reserve(1).ok());
  second.Advance(1);
  EXPECT_TRUE(second.TakeState());
}

TEST(SequenceState, WithoutKvThereAreNoBlocks) {
  Pools pools(0);
  SequenceState sequence = SequenceState::Create(pools.blocks, pools.states).value();
  EXPECT_EQ(sequence.capacity(), std::numeric_limits<int64_t>::max());
  ASSERT_TRUE(sequence.Reserve(1000).ok());
  sequence.Advance(1000);
  EXPECT_TRUE(sequence.blocks().empty());
  const std::span<const std::byte> bytes(sequence.state(), pools.layout.buffer_bytes());
  SequenceState second =
      SequenceState::Restore(pools.blocks, pools.states, 1000, {}, bytes).value();
  EXPECT_EQ(second.length(), 1000);
  EXPECT_EQ(pools.blocks.total(), 0u);
}

}  // namespace
}  // namespace cairn
