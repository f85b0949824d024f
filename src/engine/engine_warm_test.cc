// Memory that is resident and not in use, under a budget: blocks large enough to be kept warm.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/engine_core.h"
#include "support/engine_harness.h"

namespace cairn {
namespace {

class EngineWarmTest : public ::testing::TestWithParam<bool> {
 protected:
  static constexpr uint64_t kBlocks = 40;  // that the budget has room for

  FakeModelOptions Model() const {
    FakeModelOptions m;
    m.hybrid = GetParam();
    m.idle_kv_bytes = 8 << 10;  // 512 KiB a block
    return m;
  }
  EngineOptions Options() const {
    EngineOptions o = CoreDriver::SmallOptions();
    o.cache.stride = 1024;
    o.cache.bytes_max = UINT64_MAX;
    CoreDriver probe(Model(), o);
    o.memory_budget =
        probe.stats().scratch_bytes + kBlocks * probe.core().block_pool().resident_block_bytes();
    return o;
  }
  static void FillCache(CoreDriver& d) {
    for (uint64_t i = 0; d.stats().evictions == 0; ++i) d.Run(RandomTokens(100 + i, 250), 2);
  }
};
INSTANTIATE_TEST_SUITE_P(Layouts, EngineWarmTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Hybrid" : "KvOnly"; });

// What eviction frees of a full pool is resident: it goes to whom it was freed for.
TEST_P(EngineWarmTest, WhatEvictionFreesStaysWarmForTheNextOne) {
  CoreDriver d(Model(), Options());
  FillCache(d);
  auto stream = d.Submit(MakeRequest(RandomTokens(1, 60), 600));
  const BlockPool& pool = d.core().block_pool();
  int times = 0;
  while (d.stats().in_engine > 0) {
    const size_t held = pool.held();
    d.Step();
    if (pool.held() + 2 > held) continue;
    // A path of four blocks went for one; those that are left wait for the next block's border.
    EXPECT_GE(pool.warm(), 2u);
    ++times;
  }
  EXPECT_GT(times, 0);
}

// Blocks that wait to be used, new sequences and checkpoints keep out of what the process has grown
// by.
TEST_P(EngineWarmTest, NothingWarmIsInTheWayOfWhatTheProcessGrowsBy) {
  EngineOptions options = Options();
  const EngineStats* stats = nullptr;
  uint64_t grown = 0;
  options.resident_bytes = [&] { return stats->scratch_bytes + stats->pool_bytes + grown; };
  CoreDriver d(Model(), options);
  stats = &d.stats();
  FillCache(d);
  grown = 12 << 20;
  std::vector<std::shared_ptr<TokenStream>> streams;
  int small = 0;
  for (int step = 0; step < 600; ++step) {
    const bool was_known = d.stats().other_bytes > 0;
    if (step % 50 == 0) streams.push_back(d.Submit(MakeRequest(RandomTokens(step, 150), 120)));
    d.Step();
    if (!was_known || d.stats().other_bytes == 0) continue;
    ASSERT_LE(d.stats().pool_bytes + d.stats().other_bytes, d.core().pool_budget()) << step;
    ++small;
  }
  EXPECT_GT(small, 300);
  d.RunUntilIdle();
}

}  // namespace
}  // namespace cairn
