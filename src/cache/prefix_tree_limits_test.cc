// Limits and eviction, with the budgets of public bug reports (stride kS; a limit that holds k
// prompts counts a state at every stride and two more, and all KV).
#include <gtest/gtest.h>

#include "cache/tree_test_support.h"

namespace cairn {
namespace {

constexpr FakeLayout kHybrid{8, 960}, kKvOnly{8, 0};  // a state is two blocks
constexpr int64_t kS = 64;

Tokens Text(uint32_t seed, int64_t count) {
  std::mt19937 rng(seed + 1000);
  return RandomTokens(rng, count, 1000);
}

CacheOptions MakeLimit(FakeLayout fake, uint64_t states, uint64_t blocks) {
  const StateLayout layout = MakeLayout(fake);
  CacheOptions options;
  options.policy = CachePolicy::kLru;
  options.bytes_max = states * layout.buffer_bytes() + blocks * layout.block_bytes();
  return options;
}

// What a server needs for a prompt of n tokens.
CacheOptions MakeLimitFor(FakeLayout fake, int64_t n) {
  return MakeLimit(fake, static_cast<uint64_t>(n / kS + 2), static_cast<uint64_t>(n / 64));
}

CacheOptions Limit(FakeLayout fake, uint64_t states, uint64_t blocks) {
  return MakeLimit(fake, states, blocks);
}
CacheOptions LimitFor(FakeLayout fake, int64_t n) { return MakeLimitFor(fake, n); }

// What holds under each policy.
class PrefixTreeLimitsOfAnyPolicy : public testing::TestWithParam<CachePolicy> {
 protected:
  static CacheOptions With(CacheOptions options) {
    options.policy = GetParam();
    return options;
  }
  static CacheOptions Limit(FakeLayout fake, uint64_t states, uint64_t blocks) {
    return With(MakeLimit(fake, states, blocks));
  }
  static CacheOptions LimitFor(FakeLayout fake, int64_t n) { return With(MakeLimitFor(fake, n)); }
};

INSTANTIATE_TEST_SUITE_P(All, PrefixTreeLimitsOfAnyPolicy,
                         testing::Values(CachePolicy::kValue, CachePolicy::kLru,
                                         CachePolicy::kLruType));

std::vector<int64_t> Positions(const World& world, const Tokens& tokens) {
  std::vector<int64_t> positions;
  for (const Mark& mark : world.tree.Checkpoints(tokens, "")) positions.push_back(mark.position);
  return positions;
}

TEST_P(PrefixTreeLimitsOfAnyPolicy, FortyPromptsUnderALimitOfThree) {
  World world(kHybrid, LimitFor(kHybrid, 3 * 16 * kS));
  for (uint32_t i = 0; i < 40; ++i) RunRequest(world, Text(i, 16 * kS), kS, 512, Text(i + 99, 2));
  const Match last = world.tree.Find(Text(39, 16 * kS), "");
  EXPECT_EQ(last.restore_point, 16 * kS);
  // Two before it are still there too.
  EXPECT_GE(world.tree.Find(Text(38, 16 * kS), "").restore_point, 15 * kS);
  EXPECT_GT(world.tree.bytes(), world.tree.options().bytes_max / 2);
}

TEST_P(PrefixTreeLimitsOfAnyPolicy, TheGaugeIsWhatThePoolsHold) {
  World world(kHybrid, LimitFor(kHybrid, 16 * 16 * kS));
  for (uint32_t i = 0; i < 12; ++i) {
    RunRequest(world, Text(i, 16 * kS), kS, 512, Text(i + 99, 2));
    EXPECT_EQ(world.tree.bytes(), world.blocks.held_bytes() + world.states.held_bytes());
  }
  EXPECT_EQ(world.tree.evictions().bytes, 0u);
  EXPECT_EQ(world.tree.Find(Text(11, 16 * kS), "").restore_point, 16 * kS);
  EXPECT_EQ(world.tree.Find(Text(0, 16 * kS), "").restore_point, 16 * kS);
}

// 50 strides with room for 5 or 6 checkpoints and the KV: kept while it prefills, whatever the size
// of a step, and the newest checkpoint is there afterwards.
TEST_P(PrefixTreeLimitsOfAnyPolicy, LongPromptWithRoomForFewCheckpoints) {
  for (const uint64_t states : {2, 3, 5, 6}) {
    for (const int64_t rows : {16, 64, 100, 512, 5000}) {
      World world(kHybrid, Limit(kHybrid, states, 51));
      const Tokens prompt = Text(1, 50 * kS);
      RunRequest(world, Text(2, 64), kS);
      RunRequest(world, prompt, kS, rows, Text(3, 7));
      const Match again = world.tree.Find(prompt, "");
      EXPECT_EQ(again.matched, 50 * kS) << states << " " << rows;
      EXPECT_EQ(again.restore_point, 50 * kS) << states << " " << rows;
      const std::vector<int64_t> positions = Positions(world, prompt);
      EXPECT_LE(positions.size(), states);
      if (states >= 5) {
        EXPECT_GE(positions.size(), 4u);
        // Thinning leaves them spread, not in a heap.
        for (size_t i = 1; i < positions.size(); ++i) {
          EXPECT_LE(positions[i] - positions[i - 1], 34 * kS) << states << " " << rows;
        }
      }
    }
  }
}

TEST_P(PrefixTreeLimitsOfAnyPolicy, APromptLargerThanTheCacheLosesMarksNotTheRequest) {
  World world(kHybrid, Limit(kHybrid, 5, 20));
  const Tokens prompt = Text(1, 50 * kS);
  FakeSequence sequence(world, prompt, "", kS);
  sequence.RunPrompt(512);
  world.Check();
  EXPECT_GT(sequence.dropped(), 0);
  EXPECT_FALSE(sequence.Finish());
  const int64_t r = world.tree.Find(prompt, "").restore_point;
  EXPECT_GE(r, 20 * kS);  // two states and the KV fill the room of 30 blocks
  EXPECT_LE(r, 26 * kS);
}

// One prompt with two answers; the first answer's branch goes, the second stays usable.
TEST(PrefixTreeLimits, TheUsedBranchSurvivesAFlood) {
  World world(kHybrid, Limit(kHybrid, 60, 40));
  const Tokens p = Text(1, 6 * kS + 9);
  const auto with = [&](uint32_t answer, uint32_t next) {
    Tokens tokens = p;
    for (const Tokens& part : {Text(answer, 33), Text(next, 30)}) {
      tokens.insert(tokens.end(), part.begin(), part.end());
    }
    return tokens;
  };
  RunRequest(world, p, kS, 512, Text(2, 24));
  RunRequest(world, p, kS, 512, Text(3, 24));
  RunRequest(world, with(2, 4), kS);
  for (uint32_t i = 0; i < 14; ++i) {
    RunRequest(world, Text(100 + i, 9 * kS), kS);
    const Match match = RunRequest(world, with(3, 5), kS);
    EXPECT_GE(match.restore_point, 6 * kS) << i;
  }
  EXPECT_GE(world.tree.Find(with(3, 6), "").restore_point, 6 * kS + 9);
  EXPECT_LT(world.tree.Find(with(2, 4), "").matched, 6 * kS + 9 + 30);
}

TEST_P(PrefixTreeLimitsOfAnyPolicy, TinyPromptsDoNotPushOutALongOne) {
  World world(kHybrid, LimitFor(kHybrid, 42 * kS));
  RunRequest(world, Text(1, 40 * kS), kS);
  for (uint32_t i = 0; i < 3; ++i) RunRequest(world, Text(10 + i, 32), kS);
  EXPECT_EQ(world.tree.Find(Text(1, 40 * kS), "").restore_point, 40 * kS);
}

TEST(PrefixTreeLimits, ThinningComesBeforeTheLeafAndTheOldestPathFirst) {
  World world(kHybrid, LimitFor(kHybrid, 1000 * kS));
  const Tokens a = Text(1, 4 * kS), b = Text(2, 4 * kS);
  RunRequest(world, a, kS);
  RunRequest(world, b, kS);
  const std::vector<int64_t> all = {64, 128, 192, 240, 256};
  EXPECT_EQ(Positions(world, a), all);
  const std::vector<std::vector<int64_t>> steps = {
      {64, 128, 192, 256}, {64, 192, 256}, {64, 256}, {64}, {}};
  for (const std::vector<int64_t>& want : steps) {
    ASSERT_TRUE(world.tree.EvictOne());
    world.Check();
    EXPECT_EQ(Positions(world, a), want);
    EXPECT_EQ(Positions(world, b), all);
  }
  // A use refreshes the whole path.
  RunRequest(world, a, kS);
  RunRequest(world, b, kS);
  RunRequest(world, a, kS);
  ASSERT_TRUE(world.tree.EvictOne());
  EXPECT_EQ(Positions(world, a), all);
  EXPECT_EQ(Positions(world, b).size(), 4u);
}

TEST(PrefixTreeLimits, ABranchNodeAndWhatOthersShareStay) {
  World world(kHybrid, LimitFor(kHybrid, 1000 * kS));
  Tokens a = Text(1, 4 * kS), b = a;
  b[2 * kS] = 1000;  // the branch is at 128, where both have a checkpoint
  RunRequest(world, a, kS);
  RunRequest(world, b, kS);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(world.tree.EvictOne());  // a's 240, 192, then 256
  world.Check();
  EXPECT_EQ(Positions(world, a), (std::vector<int64_t>{64, 128}));
  EXPECT_EQ(Positions(world, b), (std::vector<int64_t>{64, 128, 192, 240, 256}));
}

TEST(PrefixTreeLimits, OfALivePathOnlyInnerStatesGo) {
  World world(kHybrid, LimitFor(kHybrid, 1000 * kS));
  const Tokens prompt = Text(1, 4 * kS);
  FakeSequence sequence(world, prompt, "", kS);
  sequence.RunPrompt(512);
  RunRequest(world, Text(2, 10), kS);  // newer, but idle: it goes first
  ASSERT_TRUE(world.tree.EvictOne());
  EXPECT_EQ(world.tree.Find(Text(2, 10), "").matched, 0);
  for (const std::vector<int64_t>& want :
       std::vector<std::vector<int64_t>>{{64, 128, 192, 256}, {64, 192, 256}, {64, 256}}) {
    ASSERT_TRUE(world.tree.EvictOne());
    EXPECT_EQ(Positions(world, prompt), want);
  }
  EXPECT_FALSE(world.tree.EvictOne());
  world.Check();
  EXPECT_EQ(Positions(world, prompt), (std::vector<int64_t>{64, 256}));
  sequence.Finish();
  EXPECT_TRUE(world.tree.EvictOne());
}

TEST_P(PrefixTreeLimitsOfAnyPolicy, LiveSequencesShareTheRoomEvenly) {
  World world(kHybrid, Limit(kHybrid, 12, 100));
  const Tokens a = Text(1, 20 * kS), b = Text(2, 20 * kS);
  FakeSequence first(world, a, "", kS), second(world, b, "", kS);
  first.RunPrompt(128);
  EXPECT_GE(Positions(world, a).size(), 10u);
  second.RunPrompt(128);
  world.Check();
  EXPECT_GE(Positions(world, a).size(), 4u);
  EXPECT_GE(Positions(world, b).size(), 4u);
  EXPECT_EQ(world.tree.Find(a, "").restore_point, 20 * kS);
  EXPECT_EQ(world.tree.Find(b, "").restore_point, 20 * kS);
  first.Finish();
  second.Finish();
  world.Check();
}

TEST_P(PrefixTreeLimitsOfAnyPolicy, PathsMaxCountsLeaves) {
  CacheOptions options = LimitFor(kHybrid, 1000 * kS);
  options.paths_max = 2;
  World world(kHybrid, options);
  const Tokens a = Text(1, 200), b = Text(2, 200), c = Text(3, 200);
  RunRequest(world, a, kS);
  RunRequest(world, b, kS);
  EXPECT_EQ(world.tree.path_count(), 2u);
  RunRequest(world, a, kS);  // b is the older now
  RunRequest(world, c, kS);
  EXPECT_EQ(world.tree.path_count(), 2u);
  EXPECT_EQ(world.tree.Find(a, "").restore_point, 200);
  EXPECT_EQ(world.tree.Find(b, "").matched, 0);
  EXPECT_EQ(world.tree.Find(c, "").restore_point, 200);
  EXPECT_EQ(world.tree.evictions().paths, 1u);
  // Going on from a leaf is no new path.
  Tokens longer = c;
  longer.insert(longer.end(), a.begin(), a.end());
  RunRequest(world, longer, kS);
  EXPECT_EQ(world.tree.Find(a, "").restore_point, 200);
}

TEST(PrefixTreeLimits, LruTypeKeepsTheRarerType) {
  CacheOptions options = LimitFor(kHybrid, 1000 * kS);
  options.policy = CachePolicy::kLruType;
  World world(kHybrid, options);
  const auto publish = [&](uint32_t seed, PathType type) {
    const Tokens tokens = Text(seed, 64);
    Lease lease = world.tree.AcquireRoot("");
    SequenceState state = SequenceState::Create(world.blocks, world.states).value();
    ASSERT_TRUE(state.Reserve(64).ok());
    state.Advance(64);
    EXPECT_EQ(world.tree.Publish(lease, tokens, state.blocks(), state.TakeState(), kMarkEnd, type),
              PublishResult::kPublished);
  };
  publish(1, PathType::kUser);
  publish(2, PathType::kUser);
  publish(3, PathType::kAssistant);
  ASSERT_TRUE(world.tree.EvictOne());  // one assistant is fewer than two users
  EXPECT_EQ(world.tree.Find(Text(1, 64), "").matched, 0);
  ASSERT_TRUE(world.tree.EvictOne());  // now as many: the assistant
  EXPECT_EQ(world.tree.Find(Text(3, 64), "").matched, 0);
  EXPECT_EQ(world.tree.Find(Text(2, 64), "").matched, 64);
}

uint64_t IdAt(const World& world, int64_t position) {
  for (const NodeInfo& node : world.tree.List()) {
    if (node.end == position) return node.id;
  }
  return 0;
}

TEST(PrefixTreePins, APinnedCheckpointSurvivesAFloodAndTheRestOfItsPathDoesNot) {
  for (const CachePolicy policy : {CachePolicy::kValue, CachePolicy::kLru, CachePolicy::kLruType}) {
    CacheOptions options = LimitFor(kHybrid, 3 * 16 * kS);
    options.policy = policy;
    World world(kHybrid, options);
    const Tokens prompt = Text(1, 16 * kS);
    RunRequest(world, prompt, kS);
    const uint64_t id = IdAt(world, 8 * kS);
    ASSERT_TRUE(world.tree.Pin(id).ok());
    ASSERT_TRUE(world.tree.Pin(id).ok());
    EXPECT_EQ(world.tree.pin_count(), 1u);
    for (uint32_t i = 0; i < 20; ++i) RunRequest(world, Text(10 + i, 16 * kS), kS);
    EXPECT_EQ(world.tree.Find(prompt, "").restore_point, 8 * kS);
    EXPECT_LE(Positions(world, prompt).size(), 2u);
    ASSERT_TRUE(world.tree.Unpin(id).ok());
    for (uint32_t i = 0; i < 20; ++i) RunRequest(world, Text(50 + i, 16 * kS), kS);
    EXPECT_EQ(world.tree.Find(prompt, "").matched, 0);
  }
}

TEST_P(PrefixTreeLimitsOfAnyPolicy, PinsTakeAtMostTheirShare) {
  World world(kHybrid, Limit(kHybrid, 30, 40));  // as much as 100 blocks
  const Tokens a = Text(1, 12 * kS), b = Text(2, 12 * kS);
  RunRequest(world, a, kS);
  ASSERT_TRUE(world.tree.Pin(IdAt(world, 12 * kS)).ok());
  const uint64_t state = world.layout.buffer_bytes(), block = world.layout.block_bytes();
  EXPECT_EQ(world.tree.pinned_bytes(), state + 12 * block);
  RunRequest(world, b, kS);
  // One and a half shares: 14 blocks each for the deepest, 2 more for each state on the way.
  int64_t pinned = 0, refused = 0;
  for (const NodeInfo& node : world.tree.List()) {
    if (!node.has_state) continue;
    const Status status = world.tree.Pin(node.id);
    EXPECT_EQ(status.ok() || status.code() == StatusCode::kResourceExhausted, true);
    ++(status.ok() ? pinned : refused);
    EXPECT_LE(world.tree.pinned_bytes(), world.tree.pinned_bytes_max());
  }
  EXPECT_GT(pinned, 5);
  EXPECT_GT(refused, 5);
  EXPECT_EQ(world.tree.Pin(12345).code(), StatusCode::kNotFound);
  EXPECT_EQ(world.tree.Unpin(12345).code(), StatusCode::kNotFound);
  world.tree.Clear();
  EXPECT_EQ(world.tree.pin_count(), 0u);
  world.Check();
}

TEST_P(PrefixTreeLimitsOfAnyPolicy, PinsLeaveRoomUnderAPathLimit) {
  CacheOptions options = LimitFor(kHybrid, 1000 * kS);
  options.paths_max = 3;
  World world(kHybrid, options);
  const Tokens a = Text(1, kS), b = Text(2, kS);
  RunRequest(world, a, kS);
  ASSERT_TRUE(world.tree.Pin(IdAt(world, kS)).ok());
  RunRequest(world, b, kS);
  for (const NodeInfo& node : world.tree.List()) {
    if (!node.pinned) {
      EXPECT_EQ(world.tree.Pin(node.id).code(), StatusCode::kResourceExhausted);
    }
  }
  for (uint32_t i = 0; i < 5; ++i) RunRequest(world, Text(10 + i, kS), kS);
  EXPECT_EQ(world.tree.Find(a, "").restore_point, kS);
  EXPECT_EQ(world.tree.Find(b, "").matched, 0);
  // Drop takes a pinned node too, and the pin with it.
  uint64_t pinned = 0;
  for (const NodeInfo& node : world.tree.List()) pinned = node.pinned ? node.id : pinned;
  EXPECT_TRUE(world.tree.Drop(pinned));
  EXPECT_EQ(world.tree.pin_count(), 0u);
  world.Check();
}

CacheOptions ValueLimit(uint64_t states, uint64_t blocks) {
  CacheOptions options = Limit(kHybrid, states, blocks);
  options.policy = CachePolicy::kValue;
  return options;
}

// A chat goes on; each turn is followed by titles and summaries that nobody asks for again.
TEST(PrefixTreeValue, SideRequestsDoNotPushOutALongChat) {
  World world(kHybrid, ValueLimit(30, 60));
  Tokens chat = Text(1, 12 * kS);
  RunRequest(world, chat, kS, 512, Text(2, 30));
  uint32_t seed = 100;
  for (int turn = 0; turn < 10; ++turn) {
    for (int i = 0; i < 12; ++i, ++seed) {
      RunRequest(world, Text(seed, kS), kS, 512, Text(seed + 5000, 8));
    }
    const int64_t before = static_cast<int64_t>(chat.size());
    const Tokens more = Text(seed++, 40);
    chat.insert(chat.end(), more.begin(), more.end());
    EXPECT_GE(RunRequest(world, chat, kS).restore_point, before) << turn;
  }
}

// The share of the chats' earlier tokens that is reused, once the policy could learn: many small
// chats go on, and after each round a document comes that nobody asks for again.
double ReuseOfChatsBesideDocuments(CacheOptions options) {
  World world(kHybrid, options);
  std::vector<Tokens> chats;
  for (uint32_t i = 0; i < 8; ++i) chats.push_back(Text(i, 2 * kS));
  uint32_t seed = 100;
  double asked = 0, reused = 0;
  for (int round = 0; round < 20; ++round) {
    for (Tokens& chat : chats) {
      const Tokens more = Text(seed++, 10);
      chat.insert(chat.end(), more.begin(), more.end());
      const Match match = RunRequest(world, chat, kS);
      if (round < 10) continue;
      asked += static_cast<double>(chat.size()) - 10;
      reused += static_cast<double>(match.restore_point);
    }
    RunRequest(world, Text(seed++, 20 * kS), kS);
  }
  return reused / asked;
}

TEST(PrefixTreeValue, OneShotDocumentsDoNotPushOutActiveChats) {
  CacheOptions options = ValueLimit(24, 48);  // 96 blocks' worth; a document takes 22 and more
  const double value = ReuseOfChatsBesideDocuments(options);
  options.policy = CachePolicy::kLru;
  const double lru = ReuseOfChatsBesideDocuments(options);
  EXPECT_GT(value, lru + 0.2);
}

TEST(PrefixTreeValue, TakesNothingInUse) {
  World world(kHybrid, ValueLimit(1000, 1000));
  FakeSequence sequence(world, Text(1, 4 * kS), "", kS);
  sequence.RunPrompt(512);
  RunRequest(world, Text(2, 4 * kS), kS);
  while (world.tree.EvictOne()) world.Check();
  EXPECT_EQ(Positions(world, Text(1, 4 * kS)), (std::vector<int64_t>{64, 256}));
  EXPECT_EQ(world.tree.Find(Text(2, 4 * kS), "").matched, 0);
  sequence.Finish();
  while (world.tree.EvictOne()) world.Check();
  EXPECT_EQ(world.tree.bytes(), 0u);
}

// What was taken from the middle of a path is a reason; the counters count it.
TEST(PrefixTreeValue, TheEvictedReasonAndTheCounters) {
  World world(kHybrid, ValueLimit(1000, 1000));
  const Tokens a = Text(1, 8 * kS);
  RunRequest(world, a, kS);
  uint64_t evictions = 0;
  while (Positions(world, a).size() > 3) {
    ASSERT_TRUE(world.tree.EvictOne());
    EXPECT_EQ(world.tree.evictions().bytes, ++evictions);
  }
  EXPECT_EQ(world.tree.evictions().paths, 0u);
  const std::vector<int64_t> kept = Positions(world, a);
  bool seen = false;
  for (int64_t p = kS; p < kept.back(); p += kS) {
    if (std::find(kept.begin(), kept.end(), p) != kept.end()) continue;
    Tokens changed = a;
    changed[static_cast<size_t>(p)] = 1000;  // the checkpoint at p would have served
    EXPECT_EQ(world.tree.Find(changed, "").miss_reason, MissReason::kEvicted);
    seen = true;
  }
  EXPECT_TRUE(seen);
}

TEST(PrefixTreeLimits, ZeroSwitchesTheCacheOff) {
  for (const bool by_paths : {false, true}) {
    CacheOptions options;
    options.bytes_max = by_paths ? uint64_t{1} << 40 : 0;
    if (by_paths) options.paths_max = 0;
    EXPECT_FALSE(options.enabled());
    World world(kHybrid, options);
    RunRequest(world, Text(1, 200), kS, 512, Text(2, 40));
    EXPECT_EQ(world.tree.bytes(), 0u);
    EXPECT_EQ(world.tree.Find(Text(1, 200), "").miss_reason, MissReason::kEmptyCache);
  }
}

TEST_P(PrefixTreeLimitsOfAnyPolicy, ReservedRoomCountsUntilItIsUsedOrReleased) {
  World world(kHybrid, Limit(kHybrid, 2, 4));
  const uint64_t block = world.layout.block_bytes(), state = world.layout.buffer_bytes();
  Lease lease = world.tree.AcquireRoot("");
  SequenceState live = SequenceState::Create(world.blocks, world.states).value();
  ASSERT_TRUE(live.Reserve(256).ok());
  const std::vector<Mark> marks = {{64, kMarkGrid}, {128, kMarkGrid}, {192, kMarkGrid}};
  const std::vector<Mark> got = world.tree.ReserveMarks(lease, live.blocks(), marks);
  EXPECT_EQ(got, (std::vector<Mark>{{128, kMarkGrid}, {192, kMarkGrid}}));
  EXPECT_EQ(world.tree.reserved_bytes(), 3 * block + 2 * state);
  world.Check();
  Lease other = world.tree.AcquireRoot("");  // nobody else gets it
  EXPECT_TRUE(world.tree.ReserveMarks(other, live.blocks(), marks).empty());
  world.tree.ReleaseMarks(lease);
  EXPECT_EQ(world.tree.reserved_bytes(), 0u);
  EXPECT_EQ(world.tree.ReserveMarks(other, live.blocks(), marks).size(), 2u);
  other = Lease();
  EXPECT_EQ(world.tree.reserved_bytes(), 0u);
  world.Check();
}

TEST_P(PrefixTreeLimitsOfAnyPolicy, NothingIsThrownOutInVain) {
  World world(kHybrid, Limit(kHybrid, 8, 20));
  const Tokens idle = Text(1, 4 * kS);
  RunRequest(world, idle, kS);
  const std::vector<int64_t> before = Positions(world, idle);
  Lease lease = world.tree.AcquireRoot("");
  SequenceState live = SequenceState::Create(world.blocks, world.states).value();
  ASSERT_TRUE(live.Reserve(36 * 64).ok());  // the limit holds 36 blocks, but no state then
  const std::vector<Mark> marks = {{36 * 64, kMarkEnd}};
  EXPECT_TRUE(world.tree.ReserveMarks(lease, live.blocks(), marks).empty());
  EXPECT_EQ(Positions(world, idle), before);
}

TEST_P(PrefixTreeLimitsOfAnyPolicy, KvOnlyEvictsWholeLeaves) {
  World world(kKvOnly, Limit(kKvOnly, 10, 20));
  for (uint32_t i = 0; i < 10; ++i) RunRequest(world, Text(i, 5 * 64), kS, 512, Text(i + 50, 3));
  EXPECT_EQ(world.tree.Find(Text(9, 5 * 64), "").restore_point, 5 * 64);
  EXPECT_EQ(world.tree.Find(Text(0, 5 * 64), "").matched, 0);
  EXPECT_GE(world.tree.path_count(), 2u);
}

}  // namespace
}  // namespace cairn
