#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "state/block_pool.h"
#include "state/state_layout.h"
#include "state/state_pool.h"

namespace cairn {
namespace {

StateLayout Layout(size_t kv_bytes_per_token, size_t recurrent_bytes) {
  std::vector<StatePart> parts;
  if (kv_bytes_per_token > 0) parts.push_back({0, FullKv{kv_bytes_per_token}});
  if (recurrent_bytes > 0) parts.push_back({1, Recurrent{recurrent_bytes}});
  return StateLayout::Create(std::move(parts), 64).value();
}

bool IsZero(const std::byte* data, size_t size) {
  return std::all_of(data, data + size, [](std::byte b) { return b == std::byte{0}; });
}

TEST(BlockPool, BlocksAreZeroAlsoWhenReused) {
  BlockPool pool(Layout(100, 0));  // 6,400 bytes: no multiple of a page
  const std::byte* first = nullptr;
  for (int round = 0; round < 3; ++round) {
    BlockRef block = pool.Allocate().value();
    if (round == 0) first = block.data();
    EXPECT_EQ(block.data(), first);  // the same place, handed out again
    EXPECT_TRUE(IsZero(block.data(), pool.block_bytes()));
    std::memset(block.data(), 0xab, pool.block_bytes());
  }
}

TEST(BlockPool, CountsReferences) {
  BlockPool pool(Layout(16, 0));
  BlockRef a = pool.Allocate().value();
  BlockRef b = pool.Allocate().value();
  EXPECT_FALSE(a == b);
  EXPECT_EQ(pool.held(), 2u);
  {
    BlockRef copy = a;
    BlockRef moved = std::move(copy);
    EXPECT_TRUE(moved == a);
    EXPECT_EQ(a.use_count(), 2u);
    b = moved;  // the second block is free now
    EXPECT_EQ(pool.held(), 1u);
    EXPECT_EQ(a.use_count(), 3u);
  }
  EXPECT_EQ(a.use_count(), 2u);
  pool.CheckInvariants();
  a = BlockRef();
  b = BlockRef();
  EXPECT_EQ(pool.held(), 0u);
  EXPECT_EQ(pool.free(), pool.total());
  pool.CheckInvariants();
}

TEST(BlockPool, LimitMakesAllocationFailAndNothingElse) {
  BlockPool pool(Layout(16, 0));
  pool.set_limit(2);
  BlockRef a = pool.Allocate().value();
  BlockRef b = pool.Allocate().value();
  EXPECT_EQ(pool.Allocate().status().code(), StatusCode::kResourceExhausted);
  b = BlockRef();
  EXPECT_TRUE(pool.Allocate().ok());
  pool.set_limit(std::nullopt);
  EXPECT_TRUE(pool.Allocate().ok());
}

// Pages of `bytes` from `data` that lie in memory.
size_t ResidentPages(std::byte* data, size_t bytes) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> resident(bytes / page);
  EXPECT_EQ(mincore(data, bytes, resident.data()), 0);
  return static_cast<size_t>(std::count_if(resident.begin(), resident.end(),
                                           [](unsigned char flags) { return flags & 1; }));
}

TEST(BlockPool, FreedBlocksLeaveResidentMemory) {
  BlockPool pool(Layout(2048, 0));  // 128 KiB each: no huge pages
  std::vector<BlockRef> blocks;
  for (int i = 0; i < 16; ++i) {
    blocks.push_back(pool.Allocate().value());
    EXPECT_EQ(ResidentPages(blocks.back().data(), pool.block_bytes()), 0u);
    std::memset(blocks.back().data(), 1, pool.block_bytes());
    EXPECT_GT(ResidentPages(blocks.back().data(), pool.block_bytes()), 0u);
  }
  std::vector<std::byte*> places;
  for (const BlockRef& block : blocks) places.push_back(block.data());
  blocks.resize(8);
  for (int i = 0; i < 16; ++i) {
    const size_t pages = ResidentPages(places[i], pool.block_bytes());
    EXPECT_EQ(pages > 0, i < 8);
  }
}

// Of huge items the last few stay resident for the next ones, zeroed, until they are given back.
TEST(BlockPool, FewFreedLargeBlocksStayWarm) {
  BlockPool pool(Layout(size_t{64} << 10, 0));  // 4 MiB each
  const size_t bytes = pool.resident_block_bytes();
  const size_t warm_max = (size_t{32} << 20) / bytes;
  std::vector<BlockRef> blocks;
  std::vector<std::byte*> places;
  for (size_t i = 0; i < 2 * warm_max; ++i) {
    blocks.push_back(pool.Allocate().value());
    places.push_back(blocks.back().data());
    std::memset(blocks.back().data(), 1, pool.block_bytes());
  }
  EXPECT_EQ(pool.warm_bytes(), 0u);
  blocks.clear();
  EXPECT_EQ(pool.warm_bytes(), warm_max * bytes);
  const auto resident = [&] {
    return std::count_if(places.begin(), places.end(),
                         [&](std::byte* p) { return ResidentPages(p, bytes) > 0; });
  };
  EXPECT_EQ(static_cast<size_t>(resident()), warm_max);
  for (size_t i = 0; i < 2 * warm_max; ++i) {
    blocks.push_back(pool.Allocate().value());
    EXPECT_TRUE(IsZero(blocks.back().data(), pool.block_bytes()));
    EXPECT_EQ(pool.warm_bytes(), i < warm_max ? (warm_max - i - 1) * bytes : 0u);
  }
  blocks.resize(1);
  pool.ReleaseWarm();
  EXPECT_EQ(pool.warm_bytes(), 0u);
  EXPECT_EQ(resident(), 1);
  EXPECT_TRUE(IsZero(pool.Allocate().value().data(), pool.block_bytes()));
  pool.CheckInvariants();
}

// Warming ahead: resident before it is asked for, still zero, at most what may be warm.
TEST(BlockPool, WarmsLargeBlocksAhead) {
  BlockPool pool(Layout(size_t{64} << 10, 0));  // 4 MiB each
  const size_t bytes = pool.resident_block_bytes();
  EXPECT_FALSE(pool.WarmOne());  // nothing is mapped yet
  BlockRef first = pool.Allocate().value();
  std::memset(first.data(), 1, pool.block_bytes());
  size_t warmed = 0;
  while (pool.WarmOne()) ++warmed;
  EXPECT_EQ(warmed, (size_t{32} << 20) / bytes);
  EXPECT_EQ(pool.warm(), warmed);
  std::vector<BlockRef> blocks;
  for (size_t i = 0; i < warmed + 2; ++i) {
    blocks.push_back(pool.Allocate().value());
    EXPECT_EQ(ResidentPages(blocks.back().data(), bytes) > 0, i < warmed);
    EXPECT_TRUE(IsZero(blocks.back().data(), pool.block_bytes()));
    std::memset(blocks.back().data(), 1, pool.block_bytes());
  }
  EXPECT_EQ(pool.warm(), 0u);
  ASSERT_TRUE(pool.WarmOne());
  pool.ReleaseWarm();
  EXPECT_EQ(pool.warm_bytes(), 0u);
  pool.CheckInvariants();

  BlockPool small(Layout(2048, 0));  // 128 KiB each: their pages come and go at once
  BlockRef block = small.Allocate().value();
  EXPECT_FALSE(small.WarmOne());
}

TEST(BlockPool, RandomUseKeepsTheCountsRight) {
  std::mt19937 rng(1);
  BlockPool pool(Layout(3, 0));
  std::vector<BlockRef> refs;
  for (int i = 0; i < 20000; ++i) {
    const uint32_t what = rng() % 4;
    if (what == 0 && refs.size() < 6000) refs.push_back(pool.Allocate().value());
    if (what == 1 && !refs.empty()) refs.push_back(refs[rng() % refs.size()]);
    if (what >= 2 && !refs.empty()) {
      std::swap(refs[rng() % refs.size()], refs.back());
      refs.pop_back();
    }
    if (i % 1000 == 0) pool.CheckInvariants();
  }
}

TEST(StatePool, BuffersAreZeroAlignedAndMoveOnly) {
  StatePool pool(Layout(0, 5000));
  EXPECT_EQ(pool.buffer_bytes(), Layout(0, 5000).buffer_bytes());
  std::byte* where = nullptr;
  {
    StateBuffer a = pool.Allocate().value();
    where = a.data();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(where) % 64, 0u);
    std::memset(where, 7, pool.buffer_bytes());
    StateBuffer b = std::move(a);
    EXPECT_FALSE(a);  // NOLINT(bugprone-use-after-move): empty is what is promised
    EXPECT_EQ(b.data(), where);
    EXPECT_EQ(pool.held(), 1u);
    a = std::move(b);
    EXPECT_EQ(a.data(), where);
    a = StateBuffer();
    EXPECT_EQ(pool.held(), 0u);
  }
  StateBuffer again = pool.Allocate().value();
  EXPECT_EQ(again.data(), where);
  EXPECT_TRUE(IsZero(again.data(), pool.buffer_bytes()));
  pool.set_limit(1);
  EXPECT_EQ(pool.Allocate().status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(pool.free() + pool.held(), pool.total());
}

// 19 MiB lie in huge pages where the system has them; the contract is the same.
TEST(StatePool, LargeBuffersAreZeroAlsoWhenReused) {
  const auto layout = StateLayout::Create({{0, Recurrent{size_t{19} << 20}}}, 4096);
  ASSERT_TRUE(layout.ok());
  StatePool pool(*layout);
  const size_t bytes = pool.buffer_bytes();
  for (int round = 0; round < 3; ++round) {
    std::vector<StateBuffer> buffers;
    for (int i = 0; i < 5; ++i) {
      auto buffer = pool.Allocate();
      ASSERT_TRUE(buffer.ok());
      const auto* begin = buffer->data();
      EXPECT_EQ(reinterpret_cast<uintptr_t>(begin) % 64, 0u);
      EXPECT_EQ(std::count(begin, begin + bytes, std::byte{0}), static_cast<int64_t>(bytes));
      std::memset(buffer->data(), 0xff, bytes);
      buffers.push_back(std::move(*buffer));
    }
  }
  EXPECT_EQ(pool.held(), 0u);
}

}  // namespace
}  // namespace cairn
