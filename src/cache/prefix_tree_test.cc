// The tree's promises, one example each.
#include "cache/prefix_tree.h"

#include <gtest/gtest.h>

#include <chrono>

#include "cache/tree_test_support.h"

namespace cairn {
namespace {

constexpr FakeLayout kHybrid{8, 64}, kKvOnly{8, 0};
constexpr int64_t kS = 64;  // stride of the small examples

CacheOptions Unlimited() {
  CacheOptions options;
  options.bytes_max = uint64_t{1} << 40;
  return options;
}

Tokens Text(uint32_t seed, int64_t count) {
  std::mt19937 rng(seed);
  return RandomTokens(rng, count, 1000);
}

Tokens ChangedAt(Tokens tokens, int64_t position) {
  tokens[static_cast<size_t>(position)] = 1000;
  return tokens;
}

Tokens Join(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Tokens First(const Tokens& tokens, int64_t count) {
  return Tokens(tokens.begin(), tokens.begin() + count);
}

std::vector<int64_t> Positions(const World& world, const Tokens& tokens) {
  std::vector<int64_t> positions;
  for (const Mark& mark : world.tree.Checkpoints(tokens, "")) positions.push_back(mark.position);
  return positions;
}

TEST(PrefixTree, TheProposalsExample) {
  for (const auto& [at, want] : std::vector<std::pair<int64_t, int64_t>>{
           {30000, 28672}, {3200, 2048}, {16000, 14336}, {31360, 30720}}) {
    World world(kHybrid, Unlimited());
    const Tokens prompt = Text(1, 32000);
    RunRequest(world, prompt, 2048);
    const Match match = RunRequest(world, ChangedAt(prompt, at), 2048);
    EXPECT_EQ(match.matched, at);
    EXPECT_EQ(match.restore_point, want);
    EXPECT_EQ(match.miss_reason, MissReason::kBetweenCheckpoints);
  }
}

TEST(PrefixTree, BothBranchesStayAfterAnEdit) {
  World world(kHybrid, Unlimited());
  const Tokens a = Text(1, 16 * kS + 21), edited = ChangedAt(a, 6 * kS + 30);
  RunRequest(world, a, kS);
  EXPECT_EQ(RunRequest(world, edited, kS).restore_point, 6 * kS);
  const Match third = RunRequest(world, a, kS), fourth = RunRequest(world, edited, kS);
  EXPECT_EQ(third.restore_point, 16 * kS + 21);
  EXPECT_EQ(third.miss_reason, std::nullopt);
  EXPECT_EQ(fourth.restore_point, 16 * kS + 21);
}

TEST(PrefixTree, TheBranchPointIsKeptByTheRequestThatRevealsIt) {
  World world(kHybrid, Unlimited());
  const Tokens a = Text(1, 1000);
  RunRequest(world, a, 2048);
  EXPECT_EQ(RunRequest(world, ChangedAt(a, 700), 2048).restore_point, 0);
  const Tokens third = Join(First(a, 700), Text(9, 100));
  EXPECT_EQ(RunRequest(world, third, 2048).restore_point, 700);
}

TEST(PrefixTree, TheSamePromptReplaysNothing) {
  for (const int64_t n : {1, 63, 64, 65, 128, 1000, 1024}) {
    for (const FakeLayout layout : {kHybrid, FakeLayout{0, 64}, kKvOnly}) {
      World world(layout, Unlimited());
      RunRequest(world, Text(3, n), kS);
      const Match again = RunRequest(world, Text(3, n), kS);
      EXPECT_EQ(again.restore_point, n);
      EXPECT_EQ(again.miss_reason, std::nullopt);
    }
  }
}

TEST(PrefixTree, KvOnlyReusesTheExactCommonPrefix) {
  World world(kKvOnly, Unlimited());
  const Tokens a = Text(1, 1000);
  RunRequest(world, a, kS, 512, Text(2, 20));
  EXPECT_EQ(RunRequest(world, Join(First(a, 777), Text(5, 50)), kS).restore_point, 777);
  const Match shorter = RunRequest(world, First(a, 500), kS);
  EXPECT_EQ(shorter.restore_point, 499);  // no hidden row is kept at 500
  EXPECT_EQ(shorter.miss_reason, std::nullopt);
  EXPECT_EQ(RunRequest(world, First(a, 500), kS).restore_point, 500);
  EXPECT_EQ(RunRequest(world, Join(a, Text(2, 20)), kS).restore_point, 1020);
}

TEST(PrefixTree, AnInterruptedPrefillGoesOnWhereItStopped) {
  World world(kHybrid, Unlimited());
  const Tokens prompt = Text(1, 40 * kS);
  {
    FakeSequence sequence(world, prompt, "", kS);
    for (int i = 0; i < 10; ++i) sequence.Step(kS + 10);
    EXPECT_TRUE(sequence.Finish());
  }
  EXPECT_EQ(world.tree.Find(prompt, "").restore_point, 10 * (kS + 10));
}

TEST(PrefixTree, SaltsShareNothingAndReasonsTellNothing) {
  World world(kHybrid, Unlimited());
  const Tokens prompt = Text(1, 300);
  RunRequest(world, prompt, kS, 512, {}, "alice");
  EXPECT_EQ(world.tree.Find(prompt, "bob").miss_reason, MissReason::kEmptyCache);
  EXPECT_EQ(world.tree.Find(prompt, "").miss_reason, MissReason::kEmptyCache);
  EXPECT_EQ(world.tree.Find(prompt, "alice").restore_point, 300);
}

TEST(PrefixTree, MissReasons) {
  CacheOptions options = Unlimited();
  options.policy = CachePolicy::kLru;
  World world(kHybrid, options);
  const Tokens a = Text(1, 1000);
  EXPECT_EQ(world.tree.Find(a, "").miss_reason, MissReason::kEmptyCache);
  RunRequest(world, a, 256);
  const auto reason = [&](const Tokens& tokens) { return world.tree.Find(tokens, "").miss_reason; };
  EXPECT_EQ(reason(ChangedAt(a, 0)), MissReason::kNoSharedPrefix);
  EXPECT_EQ(reason(ChangedAt(a, 63)), MissReason::kTooShort);
  EXPECT_EQ(reason(ChangedAt(a, 64)), MissReason::kNoCheckpointBeforeDivergence);
  EXPECT_EQ(reason(ChangedAt(a, 300)), MissReason::kBetweenCheckpoints);
  EXPECT_EQ(reason(ChangedAt(a, 256)), std::nullopt);
  ASSERT_TRUE(world.tree.EvictOne());  // 256, 512, 768, 984, 1000: the closest inner pair's 984
  EXPECT_EQ(Positions(world, a), (std::vector<int64_t>{256, 512, 768, 1000}));
  EXPECT_EQ(reason(ChangedAt(a, 990)), MissReason::kEvicted);
  EXPECT_EQ(reason(ChangedAt(a, 980)), MissReason::kBetweenCheckpoints);
}

TEST(PrefixTree, ANewEndFreesTheOldOne) {
  World world(kHybrid, Unlimited());
  const Tokens chat = Text(1, 1000);
  RunRequest(world, First(chat, 300), 2048);
  EXPECT_EQ(Positions(world, chat), (std::vector<int64_t>{284, 300}));
  RunRequest(world, First(chat, 600), 2048);
  EXPECT_EQ(Positions(world, chat), (std::vector<int64_t>{284, 584, 600}));
}

TEST(PrefixTree, AnOldEndStaysWhereItIsMore) {
  World world(kHybrid, Unlimited());
  const Tokens chat = Text(1, 1000);
  RunRequest(world, First(chat, 256), 256);  // grid too
  RunRequest(world, First(chat, 300), 256);
  RunRequest(world, Join(First(chat, 300), Text(7, 50)), 256);  // 300 was freed here
  EXPECT_EQ(Positions(world, chat), (std::vector<int64_t>{240, 256, 284}));
  // An end with a second child stays.
  RunRequest(world, First(chat, 400), 256);
  RunRequest(world, First(chat, 320), 256);
  RunRequest(world, Join(First(chat, 320), Text(8, 50)), 256);
  const std::vector<int64_t> positions = Positions(world, First(chat, 320));
  EXPECT_NE(std::find(positions.begin(), positions.end(), 320), positions.end());
}

TEST(PrefixTree, BytesCountSharedBlocksOnce) {
  World world(kHybrid, Unlimited());
  const uint64_t block = world.layout.block_bytes(), state = world.layout.buffer_bytes();
  const Tokens a = Text(1, 100);
  RunRequest(world, a, 2048);  // states at 84 and 100, two blocks
  EXPECT_EQ(world.tree.bytes(), 2 * block + 2 * state);
  // Splits inside the first block; its branch copies that block and needs one more.
  RunRequest(world, ChangedAt(a, 30), 2048);
  EXPECT_EQ(world.tree.bytes(), 4 * block + 4 * state);
  uint64_t freed = 0;
  for (const NodeInfo& node : world.tree.List()) freed += node.freed_bytes;
  EXPECT_LE(freed, world.tree.bytes());
  EXPECT_EQ(world.blocks.held_bytes() + world.states.held_bytes(), world.tree.bytes());
}

TEST(PrefixTree, AFinishedStateMovesIn) {
  World world(kHybrid, Unlimited());
  FakeSequence sequence(world, Text(1, 100), "", 2048);
  sequence.RunPrompt(512);
  sequence.Generate(Text(2, 40));
  sequence.Step(40);
  const std::byte* where = sequence.state().state();
  EXPECT_TRUE(sequence.Finish());
  const Match match = world.tree.Find(Join(Text(1, 100), Text(2, 40)), "");
  EXPECT_EQ(match.restore_point, 140);
  EXPECT_EQ(world.states.held(), world.tree.checkpoint_count());
  bool found = false;  // no copy: the pool hands out the same place only when it is free
  for (int i = 0; i < 4; ++i) found |= world.states.Allocate().value().data() == where;
  EXPECT_FALSE(found);
}

TEST(PrefixTree, ALiveSequenceSurvivesClearAndPublishesAgain) {
  for (const FakeLayout layout : {kHybrid, kKvOnly}) {
    World world(layout, Unlimited());
    const Tokens prompt = Text(1, 10 * kS);
    FakeSequence sequence(world, prompt, "", kS);
    sequence.Step(4 * kS);
    world.tree.Clear();
    world.Check();
    EXPECT_EQ(world.tree.bytes(), 0u);
    sequence.RunPrompt(2 * kS);
    world.Check();
    sequence.Finish();
    world.Check();
    EXPECT_EQ(world.tree.Find(prompt, "").restore_point, 10 * kS);
    EXPECT_EQ(RunRequest(world, prompt, kS).restore_point, 10 * kS);
  }
}

TEST(PrefixTree, DropTakesTheKvWithTheLastUser) {
  World world(kHybrid, Unlimited());
  const Tokens a = Text(1, 256);
  RunRequest(world, a, 128);  // 128, 240, 256
  EXPECT_FALSE(world.tree.Drop(12345));
  for (const NodeInfo& node : world.tree.List()) {
    if (node.end == 128) {
      EXPECT_TRUE(world.tree.Drop(node.id));
    }
  }
  world.Check();
  EXPECT_EQ(Positions(world, a), (std::vector<int64_t>{240, 256}));
  EXPECT_EQ(world.tree.Find(ChangedAt(a, 200), "").miss_reason,
            MissReason::kNoCheckpointBeforeDivergence);  // dropped by hand, not evicted
  const uint64_t block = world.layout.block_bytes(), state = world.layout.buffer_bytes();
  EXPECT_EQ(world.tree.bytes(), 4 * block + 2 * state);
  for (const NodeInfo& node : world.tree.List()) {
    if (node.end == 256) {
      EXPECT_TRUE(world.tree.Drop(node.id));
    }
  }
  EXPECT_EQ(world.tree.bytes(), 4 * block + 1 * state);
  EXPECT_EQ(world.tree.Find(a, "").matched, 240);
}

// The planted fault does what it says, and a comparison of bytes notices.
TEST(PrefixTree, AStaleBlockWouldBeNoticed) {
  for (const CacheFault fault : {CacheFault::kNone, CacheFault::kStaleBlock}) {
    CacheOptions options = Unlimited();
    options.fault = fault;
    World world(kHybrid, options);
    const Tokens a = Text(1, 120), b = ChangedAt(a, 100);
    RunRequest(world, a, 2048);
    RunRequest(world, b, 2048);
    Lease lease = world.tree.Acquire(world.tree.Find(b, ""), "");
    const SequenceState state = world.tree.Restore(lease, world.blocks, world.states).value();
    EXPECT_EQ(state.length(), 120);
    EXPECT_EQ(HoldsExactly(world, state, b, true), fault == CacheFault::kNone);
  }
}

TEST(PrefixTree, FailedRestoreHoldsNothing) {
  World world(kHybrid, Unlimited());
  RunRequest(world, Text(1, 100), kS);
  const size_t blocks = world.blocks.held(), states = world.states.held();
  {
    Lease lease = world.tree.Acquire(world.tree.Find(Text(1, 100), ""), "");
    world.blocks.set_limit(blocks);
    EXPECT_EQ(world.tree.Restore(lease, world.blocks, world.states).status().code(),
              StatusCode::kResourceExhausted);
  }
  EXPECT_EQ(world.blocks.held(), blocks);
  EXPECT_EQ(world.states.held(), states);
  world.Check();
}

TEST(PrefixTree, FindIsCheapForLongPrompts) {
  World world(kHybrid, Unlimited());
  const Tokens prompt = Text(1, 32000);
  RunRequest(world, prompt, 2048);
  const auto begin = std::chrono::steady_clock::now();
  int64_t sum = 0;
  for (int i = 0; i < 100; ++i) sum += world.tree.Find(prompt, "").matched;
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  EXPECT_EQ(sum, 3200000);
  EXPECT_LT(seconds.count() / 100, 0.005);  // measured: 10 us; the rest is for slow machines
}

}  // namespace
}  // namespace cairn
