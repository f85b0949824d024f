// Random lives of many sequences on one tree, against a naive oracle: the list of all nodes' paths,
// searched from end to end, and bytes that are a function of their tokens.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "cache/tree_test_support.h"

namespace cairn {
namespace {

struct Scenario {
  const char* name;
  FakeLayout layout;
  uint64_t states_max;  // the byte limit, in states ...
  uint64_t blocks_max;  // ... and blocks
  std::optional<int64_t> paths_max;
  CachePolicy policy;
};

void PrintTo(const Scenario& scenario, std::ostream* out) { *out << scenario.name; }

constexpr FakeLayout kHybrid{8, 64}, kRecurrentOnly{0, 64}, kKvOnly{8, 0};
const Scenario kScenarios[] = {
    {"HybridUnlimited", kHybrid, 100000, 100000, {}, CachePolicy::kLru},
    {"HybridTight", kHybrid, 12, 30, {}, CachePolicy::kLru},
    {"HybridVeryTight", kHybrid, 3, 8, {}, CachePolicy::kLru},
    {"HybridTightByType", kHybrid, 16, 40, {}, CachePolicy::kLruType},
    {"HybridFewPaths", kHybrid, 100000, 100000, 3, CachePolicy::kLru},
    {"HybridOnePath", kHybrid, 40, 100, 1, CachePolicy::kLruType},
    {"RecurrentOnlyTight", kRecurrentOnly, 10, 0, {}, CachePolicy::kLru},
    {"KvOnlyUnlimited", kKvOnly, 100000, 100000, {}, CachePolicy::kLru},
    {"KvOnlyTight", kKvOnly, 10, 30, 6, CachePolicy::kLru},
    {"HybridTightByValue", kHybrid, 12, 30, {}, CachePolicy::kValue},
    {"HybridVeryTightByValue", kHybrid, 3, 8, {}, CachePolicy::kValue},
    {"HybridFewPathsByValue", kHybrid, 100000, 100000, 3, CachePolicy::kValue},
    {"RecurrentOnlyTightByValue", kRecurrentOnly, 10, 0, {}, CachePolicy::kValue},
    {"KvOnlyTightByValue", kKvOnly, 10, 30, 6, CachePolicy::kValue},
    {"Off", kHybrid, 0, 0, {}, CachePolicy::kLru},
};

// What happened, so that the test can say that it tested something.
struct Seen {
  int64_t hits = 0, partial_blocks = 0, full_matches = 0, dropped = 0, finishes = 0, evicted = 0,
          misses_after_eviction = 0, live_at_once = 0, pins = 0, pins_refused = 0,
          exact_evictions = 0;
};

class Fuzz {
 public:
  Fuzz(const Scenario& scenario, uint32_t seed)
      : rng_(seed), world_(scenario.layout, Options(scenario, scenario.layout)) {}

  void Run(int operations) {
    for (int i = 0; i < operations && !testing::Test::HasFailure(); ++i) {
      const uint32_t what = rng_() % 100;
      if (what < 22 && live_.size() < 5) {
        Start();
      } else if (what < 82 && !live_.empty()) {
        StepOne();
      } else if (what < 92 && !live_.empty()) {
        FinishOne();
      } else if (what < 94) {
        DropOne();
      } else if (what == 94 && rng_() % 20 == 0) {
        world_.tree.Clear();
        pins_.clear();
      } else if (what == 95) {
        EvictOne();
      } else if (what == 96 || what == 97) {
        PinOne();
      } else if (what == 98) {
        UnpinOne();
      }
      world_.Check();
      CheckPins();
      seen_.live_at_once = std::max<int64_t>(seen_.live_at_once, live_.size());
    }
    while (!live_.empty()) FinishOne();
    seen_.evicted = world_.tree.evictions().bytes + world_.tree.evictions().paths;
    RestoreAll();
    world_.tree.Clear();
    world_.Check();
    EXPECT_EQ(world_.tree.bytes(), 0u);
    EXPECT_EQ(world_.blocks.held(), 0u);
    EXPECT_EQ(world_.states.held(), 0u);
  }
  const Seen& seen() const { return seen_; }

 private:
  struct Path {
    Tokens tokens;
    bool has_state;
  };

  static CacheOptions Options(const Scenario& scenario, FakeLayout layout) {
    const StateLayout made = MakeLayout(layout);
    CacheOptions options;
    options.paths_max = scenario.paths_max;
    options.policy = scenario.policy;
    options.bytes_max =
        scenario.states_max * made.buffer_bytes() + scenario.blocks_max * made.block_bytes();
    return options;
  }

  // Full token paths of all nodes under one root.
  std::vector<Path> Paths(const std::string& salt) const {
    std::map<uint64_t, Tokens> by_id;
    std::vector<Path> paths;
    for (const NodeInfo& node : world_.tree.List()) {
      Tokens tokens = node.parent == 0 ? Tokens() : by_id.at(node.parent);
      EXPECT_EQ(static_cast<int64_t>(tokens.size()), node.begin);
      tokens.insert(tokens.end(), node.tokens.begin(), node.tokens.end());
      EXPECT_EQ(static_cast<int64_t>(tokens.size()), node.end);
      by_id[node.id] = tokens;
      if (node.salted == !salt.empty()) paths.push_back({std::move(tokens), node.has_state});
    }
    return paths;
  }

  // A prompt that begins like an earlier one more often than not.
  Tokens MakePrompt() {
    Tokens prompt;
    if (!corpus_.empty() && rng_() % 8 != 0) {
      const Tokens& old = corpus_[rng_() % corpus_.size()];
      const uint32_t how = rng_() % 4;
      const size_t cut = how == 0   ? old.size()
                         : how == 1 ? old.size() / 64 * 64
                                    : rng_() % old.size();
      prompt.assign(old.begin(), old.begin() + static_cast<int64_t>(cut));
      if (how == 0 && rng_() % 2 == 0 && !prompt.empty()) return prompt;
    }
    const Tokens tail = RandomTokens(rng_, 1 + rng_() % (rng_() % 3 == 0 ? 300 : 60), 3);
    prompt.insert(prompt.end(), tail.begin(), tail.end());
    return prompt;
  }

  void CompareWithOracle(const Tokens& prompt, const std::string& salt) {
    const Match match = world_.tree.Find(prompt, salt);
    const std::vector<Path> paths = Paths(salt);
    int64_t matched = 0, deepest = 0;
    std::set<int64_t> checkpoints;
    for (const Path& path : paths) {
      const auto end =
          std::mismatch(path.tokens.begin(), path.tokens.end(), prompt.begin(), prompt.end()).first;
      matched = std::max<int64_t>(matched, end - path.tokens.begin());
      if (end != path.tokens.end() || !path.has_state) continue;
      checkpoints.insert(static_cast<int64_t>(path.tokens.size()));
      deepest = *checkpoints.rbegin();
    }
    EXPECT_EQ(match.matched, matched);
    const int64_t n = static_cast<int64_t>(prompt.size());
    if (world_.layout.trimmable()) {
      EXPECT_EQ(match.restore_point,
                matched == n && deepest < n ? std::max<int64_t>(n - 1, 0) : matched);
    } else {
      EXPECT_EQ(match.restore_point, deepest);
    }
    std::set<int64_t> listed;
    for (const Mark& mark : world_.tree.Checkpoints(prompt, salt)) listed.insert(mark.position);
    EXPECT_EQ(listed, checkpoints);
    CompareReason(match, paths.empty());
  }

  void CompareReason(const Match& match, bool empty) {
    const int64_t m = match.matched, r = match.restore_point;
    std::optional<MissReason> expected;
    if (empty) {
      expected = MissReason::kEmptyCache;
    } else if (m == 0) {
      expected = MissReason::kNoSharedPrefix;
    } else if (r != m && !world_.layout.trimmable()) {
      expected = r > 0    ? MissReason::kBetweenCheckpoints
                 : m < 64 ? MissReason::kTooShort
                          : MissReason::kNoCheckpointBeforeDivergence;
      if (match.miss_reason == MissReason::kEvicted) {
        EXPECT_GT(world_.tree.evictions().bytes, 0u);
        ++seen_.misses_after_eviction;
        return;
      }
    }
    EXPECT_EQ(match.miss_reason, expected);
  }

  void Start() {
    Tokens prompt = MakePrompt();
    const std::string salt = rng_() % 4 == 0 ? "salt" : "";
    CompareWithOracle(prompt, salt);
    std::vector<int64_t> turns;
    for (size_t i = 0; i + 1 < prompt.size(); ++i) {
      if (prompt[i] == 2 && prompt[i + 1] == 2) turns.push_back(static_cast<int64_t>(i));
    }
    if (rng_() % 2 == 0) turns.clear();
    corpus_.push_back(prompt);
    if (corpus_.size() > 40) corpus_.erase(corpus_.begin());
    live_.push_back(std::make_unique<FakeSequence>(world_, std::move(prompt), salt, 64, turns));
    const FakeSequence& sequence = *live_.back();
    seen_.hits += sequence.match().restore_point > 0;
    seen_.partial_blocks += sequence.match().restore_point % 64 != 0;
    seen_.full_matches += sequence.match().restore_point == sequence.n();
  }

  void StepOne() {
    FakeSequence& sequence = *live_[rng_() % live_.size()];
    if (!sequence.in_prefill()) sequence.Generate(RandomTokens(rng_, 1 + rng_() % 30, 3));
    const int64_t before = sequence.dropped();
    sequence.Step(1 + rng_() % 150);
    seen_.dropped += sequence.dropped() - before;
    // What it holds stays right, whatever the others wrote.
    EXPECT_TRUE(HoldsExactly(world_, sequence.state(),
                             std::span(sequence.tokens()).first(sequence.length()),
                             sequence.match().restore_point < sequence.length()));
  }

  void FinishOne() {
    const size_t i = rng_() % live_.size();
    corpus_.push_back(live_[i]->tokens());
    seen_.finishes += live_[i]->Finish();
    live_.erase(live_.begin() + static_cast<int64_t>(i));
  }

  void DropOne() {
    const std::vector<NodeInfo> nodes = world_.tree.List();
    if (nodes.empty()) return;
    const uint64_t id = nodes[rng_() % nodes.size()].id;
    pins_.erase(id);
    EXPECT_TRUE(world_.tree.Drop(id));
    EXPECT_FALSE(world_.tree.Drop(next_unknown_id_++));
  }

  // What goes is one listed thing, and frees what the list said; nothing in use or pinned goes.
  void EvictOne() {
    std::map<uint64_t, NodeInfo> before;
    for (const NodeInfo& node : world_.tree.List()) before.emplace(node.id, node);
    const uint64_t bytes = world_.tree.bytes();
    if (!world_.tree.EvictOne()) return;
    for (const NodeInfo& node : world_.tree.List()) {
      const auto old = before.find(node.id);
      // A node that lives on with its state, or never had one, is not what went.
      if (node.has_state || !old->second.has_state) before.erase(old);
    }
    // What is gone: the victim, and stateless nodes that became one with their child.
    std::vector<NodeInfo> victims;
    for (const auto& [id, node] : before) {
      if (node.has_state || (world_.layout.trimmable() && node.children == 0)) {
        victims.push_back(node);
      }
    }
    ASSERT_EQ(victims.size(), 1u);
    EXPECT_FALSE(victims[0].pinned);
    EXPECT_EQ(victims[0].leases, 0);
    EXPECT_EQ(bytes - world_.tree.bytes(), victims[0].freed_bytes);
    ++seen_.exact_evictions;
  }

  void PinOne() {
    const std::vector<NodeInfo> nodes = world_.tree.List();
    EXPECT_EQ(world_.tree.Pin(next_unknown_id_++).code(), StatusCode::kNotFound);
    if (nodes.empty()) return;
    const NodeInfo& node = nodes[rng_() % nodes.size()];
    const Status pinned = world_.tree.Pin(node.id);
    const bool can_restore = node.has_state || world_.layout.trimmable();
    EXPECT_EQ(pinned.code() == StatusCode::kInvalidArgument, !can_restore);
    if (pinned.ok()) pins_.insert(node.id);
    seen_.pins += pinned.ok();
    seen_.pins_refused += pinned.code() == StatusCode::kResourceExhausted;
  }

  void UnpinOne() {
    if (pins_.empty()) return;
    const auto at = std::next(pins_.begin(), rng_() % pins_.size());
    EXPECT_TRUE(world_.tree.Unpin(*at).ok());
    pins_.erase(at);
  }

  // What was pinned is there and stays within its share, whatever else happened.
  void CheckPins() {
    if (world_.tree.pin_count() == 0 && pins_.empty()) return;
    std::set<uint64_t> found;
    for (const NodeInfo& node : world_.tree.List()) {
      if (!node.pinned) continue;
      EXPECT_TRUE(node.has_state || world_.layout.trimmable());
      found.insert(node.id);
    }
    EXPECT_EQ(found, pins_);
    EXPECT_LE(world_.tree.pinned_bytes(), world_.tree.pinned_bytes_max());
  }

  // Every checkpoint there is gives back exactly what its tokens say (the sequence checks it).
  void RestoreAll() {
    for (const char* salt : {"", "salt"}) {
      for (const Path& path : Paths(salt)) {
        if (!path.has_state) continue;
        FakeSequence sequence(world_, path.tokens, salt, 64);
        EXPECT_EQ(sequence.match().restore_point, sequence.n());
        EXPECT_TRUE(HoldsExactly(world_, sequence.state(), path.tokens, true));
      }
      world_.Check();
    }
  }

  std::mt19937 rng_;
  World world_;
  std::vector<std::unique_ptr<FakeSequence>> live_;
  std::vector<Tokens> corpus_;
  Seen seen_;
  std::set<uint64_t> pins_;
  uint64_t next_unknown_id_ = uint64_t{1} << 60;
};

class PrefixTreeFuzz : public testing::TestWithParam<Scenario> {};

TEST_P(PrefixTreeFuzz, EqualsTheOracle) {
  const Scenario& scenario = GetParam();
  Seen all;
  for (uint32_t seed = 1; seed <= 6 && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Fuzz fuzz(scenario, seed);
    fuzz.Run(2000);
    const Seen& seen = fuzz.seen();
    all.hits += seen.hits;
    all.partial_blocks += seen.partial_blocks;
    all.full_matches += seen.full_matches;
    all.dropped += seen.dropped;
    all.finishes += seen.finishes;
    all.evicted += seen.evicted;
    all.misses_after_eviction += seen.misses_after_eviction;
    all.exact_evictions += seen.exact_evictions;
    all.pins += seen.pins;
    all.pins_refused += seen.pins_refused;
    all.live_at_once = std::max(all.live_at_once, seen.live_at_once);
  }
  // The test is worth something only if these things happened.
  EXPECT_GT(all.live_at_once, 3);
  if (scenario.states_max == 0) {
    EXPECT_EQ(all.hits, 0);
    return;
  }
  EXPECT_GT(all.hits, 20);
  EXPECT_GT(all.partial_blocks, 10);
  EXPECT_GT(all.finishes, 100);
  if (scenario.states_max < 100 || scenario.paths_max) {
    EXPECT_GT(all.evicted, 100);
  } else {
    EXPECT_GT(all.full_matches, 20);
  }
  EXPECT_GT(all.exact_evictions, 20);
  if (scenario.paths_max != 1) {
    EXPECT_GT(all.pins, 20);
  }
  if (scenario.states_max < 100 || scenario.paths_max) {
    EXPECT_GT(all.pins_refused, 0);
  }
  if (scenario.states_max < 20 && scenario.layout.recurrent_bytes > 0) {
    EXPECT_GT(all.dropped, 0);
    EXPECT_GT(all.misses_after_eviction, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(All, PrefixTreeFuzz, testing::ValuesIn(kScenarios),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace cairn
