// Many requests at once: shared prefixes, priorities, keys, one memory budget.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/engine_core.h"
#include "support/engine_harness.h"

namespace cairn {
namespace {

class EngineLoadTest : public ::testing::TestWithParam<bool> {
 protected:
  static constexpr int64_t kShared = 4096;
  static constexpr int kSiblings = 16;

  FakeModelOptions Model() const {
    FakeModelOptions m;
    m.hybrid = GetParam();
    m.context_length = 8192;
    return m;
  }
  // A budget that leaves so many pages to the pools. The size of one.
  uint64_t WithPages(uint64_t pages, EngineOptions& options) const {
    CoreDriver probe(Model(), options);
    const uint64_t page = probe.core().block_pool().resident_block_bytes();
    options.memory_budget = probe.stats().scratch_bytes + pages * page;
    return page;
  }
  static EngineOptions Options() {
    EngineOptions o = CoreDriver::SmallOptions();
    o.cache.stride = 2048;
    o.cache.bytes_max = 64 << 20;
    o.step_rows_max = 512;
    o.decode_concurrency = kSiblings;
    o.prompt_concurrency = 8;
    o.logit_rows_max = kSiblings;
    return o;
  }

  // 16 prompts that share their first 4,096 tokens and nothing more.
  void SubmitSiblings(CoreDriver& d) {
    const auto shared = RandomTokens(7, kShared);
    for (int i = 0; i < kSiblings; ++i) {
      std::vector<Token> tail = RandomTokens(100 + static_cast<uint64_t>(i), 20 + i);
      tail[0] = static_cast<Token>(i);
      requests_.push_back(MakeRequest(Join(shared, tail), 5));
      tails_ += static_cast<int64_t>(tail.size());
      streams_.push_back(d.Submit(requests_.back()));
    }
  }
  void ExpectAnswers(CoreDriver& d, int cancelled = -1) {
    for (size_t i = 0; i < streams_.size(); ++i) {
      Outcome got;
      got.AddAll(*streams_[i]);
      EXPECT_EQ(Difference(got, ExpectedOutcome(d.model(), requests_[i], {}),
                           static_cast<int>(i) == cancelled),
                "")
          << i;
    }
  }
  int64_t DecodeRows() const { return kSiblings * 4; }

  std::vector<Request> requests_;
  std::vector<std::shared_ptr<TokenStream>> streams_;
  int64_t tails_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Layouts, EngineLoadTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Hybrid" : "KvOnly"; });

TEST_P(EngineLoadTest, ANewSharedPrefixIsComputedOnce) {
  CoreDriver d(Model(), Options());
  SubmitSiblings(d);
  d.RunUntilIdle();
  ExpectAnswers(d);
  EXPECT_EQ(d.model().rows_run(), kShared + tails_ + DecodeRows());
  EXPECT_EQ(d.stats().replayed_tokens, static_cast<uint64_t>(kShared + tails_));
  EXPECT_EQ(d.stats().shared_waits, static_cast<uint64_t>(kSiblings - 1));
}

TEST_P(EngineLoadTest, IfTheFirstSiblingLeavesTheNextOneGoesOn) {
  for (const int steps : {1, 3, 7}) {
    requests_.clear();
    streams_.clear();
    tails_ = 0;
    CoreDriver d(Model(), Options());
    SubmitSiblings(d);
    for (int i = 0; i < steps; ++i) d.Step();
    streams_[0]->Cancel();
    d.RunUntilIdle();
    ExpectAnswers(d, 0);
    EXPECT_LE(d.model().rows_run(), kShared + tails_ + DecodeRows());  // its work is not lost
  }
}

TEST_P(EngineLoadTest, IfTheFirstSiblingFailsTheNextOneTakesOver) {
  int steps = 0;
  FakeModelOptions model = Model();
  model.on_forward = [&](const ForwardBatch&) {
    if (++steps == 3) throw std::bad_alloc();
  };
  CoreDriver d(model, Options());
  SubmitSiblings(d);
  for (int i = 0; i < 2; ++i) d.Step();
  EXPECT_THROW(d.core().Step(), std::bad_alloc);
  d.core().Recover(Internal("out of memory"));
  d.RunUntilIdle();
  for (int i = 1; i < kSiblings; ++i) {
    Outcome got;
    got.AddAll(*streams_[static_cast<size_t>(i)]);
    EXPECT_EQ(Difference(got, ExpectedOutcome(d.model(), requests_[static_cast<size_t>(i)], {})),
              "");
  }
  EXPECT_LE(d.model().rows_run(), kShared + 3 * 512 + tails_ + DecodeRows());
}

// The first one is preempted on the way: what the others wait for is not forgotten.
TEST_P(EngineLoadTest, IfTheFirstSiblingIsPreemptedThePrefixIsStillComputedOnce) {
  constexpr int64_t kPrefix = 3000;  // no grid mark there
  CoreDriver d(Model(), Options());
  requests_.push_back(MakeRequest(RandomTokens(1, 100), 40));
  streams_.push_back(d.Submit(requests_.back()));
  d.Step();
  const auto shared = RandomTokens(7, kPrefix);
  int64_t tails = 0;
  for (uint64_t i = 0; i < 6; ++i) {
    std::vector<Token> tail = RandomTokens(100 + i, 30);
    tail[0] = static_cast<Token>(i);
    tails += std::ssize(tail);
    requests_.push_back(MakeRequest(Join(shared, tail), 5));
    streams_.push_back(d.Submit(requests_.back()));
  }
  for (int i = 0; i < 3; ++i) d.Step();
  d.core().SetPoolLimits(d.core().block_pool().held(), std::nullopt);
  d.Step();
  EXPECT_EQ(d.stats().preemptions, 1u);
  d.core().SetPoolLimits(std::nullopt, std::nullopt);
  d.RunUntilIdle();
  ExpectAnswers(d);
  EXPECT_EQ(d.model().rows_run(), 100 + 39 + kPrefix + tails + 6 * 4);
}

// A key that had much computes what one that had nothing waits for: it does not come last.
TEST_P(EngineLoadTest, WhatAModestKeyWaitsForComesAsSoonAsItWould) {
  EngineOptions options = Options();
  options.step_rows_max = 64;
  CoreDriver d(Model(), options);
  const auto submit = [&](std::vector<Token> prompt, const char* key, int64_t max_tokens) {
    requests_.push_back(MakeRequest(std::move(prompt), max_tokens));
    requests_.back().share_key = key;
    streams_.push_back(d.Submit(requests_.back()));
  };
  submit(RandomTokens(1, 4000), "greedy", 1000);
  submit(RandomTokens(2, 10), "modest", 1000);
  submit(RandomTokens(3, 10), "other", 1000);
  Outcome greedy;
  while (greedy.tokens.empty()) {
    d.Step();
    greedy.AddAll(*streams_[0]);
  }
  const auto shared = RandomTokens(4, 2000);
  submit(Join(shared, {1}), "greedy", 1);
  d.Step();
  submit(Join(shared, {2}), "modest", 1);
  submit(RandomTokens(5, 3000), "other", 1);
  Outcome modest, other;
  while (!modest.end && !other.end) {
    d.Step();
    modest.AddAll(*streams_[4]);
    other.AddAll(*streams_[5]);
  }
  EXPECT_EQ(d.stats().shared_waits, 1u);
  EXPECT_TRUE(modest.end);
  for (auto& stream : streams_) stream->Cancel();
  d.RunUntilIdle();
}

// Admission fails after it left out the one that waits: that one is looked at again.
TEST_P(EngineLoadTest, AFaultInAdmissionForgetsNobodyThatWaits) {
  int looks_to_fault = 0;
  EngineOptions options = Options();
  options.clock = [&] {
    if (looks_to_fault > 0 && --looks_to_fault == 0) throw std::bad_alloc();
    return Clock::now();
  };
  CoreDriver d(Model(), options);
  const auto shared = RandomTokens(7, kShared);
  auto first = d.Submit(MakeRequest(Join(shared, {1}), 5));
  d.Step();
  const Request waits = MakeRequest(Join(shared, {2}), 5);
  auto waiting = d.Submit(waits);
  auto fails = d.Submit(MakeRequest(RandomTokens(8, 20), 5));
  looks_to_fault = 2;  // the step's begin, then the admission of the last one
  EXPECT_THROW(d.core().Step(), std::bad_alloc);
  EXPECT_EQ(d.stats().shared_waits, 1u);
  d.core().Recover(Internal("out of memory"));
  d.RunUntilIdle();
  Outcome got;
  got.AddAll(*waiting);
  EXPECT_EQ(Difference(got, ExpectedOutcome(d.model(), waits, {})), "");
  for (auto& stream : {first, fails}) {
    Outcome o;
    o.AddAll(*stream);
    ASSERT_TRUE(o.end);
    EXPECT_EQ(o.end->reason, FinishReason::kError);
  }
}

// A stretch in which the machine was slow must not make prompts crawl beside streams ever after.
TEST_P(EngineLoadTest, ASlowStretchIsForgottenWhileStreamsGoOn) {
  double now_ms = 1, slow = 1;
  FakeModelOptions model = Model();
  model.on_forward = [&](const ForwardBatch& batch) {
    now_ms += slow * (40 + 4 * static_cast<double>(batch.tokens.size()));
  };
  EngineOptions options = Options();
  options.clock = [&] {
    return Clock::time_point(std::chrono::microseconds(static_cast<int64_t>(1e3 * now_ms)));
  };
  options.step_target = {.factor = 1.5, .floor_ms = 0};
  CoreDriver d(model, options);
  auto stream = d.Submit(MakeRequest(RandomTokens(1, 20), 3000));
  for (int i = 0; i < 30; ++i) d.Step();
  const auto steps_of = [&](uint64_t seed, int64_t n) {
    auto prompt = d.Submit(MakeRequest(RandomTokens(seed, n), 1));
    Outcome o;
    int64_t steps = 0;
    for (; !o.end && steps < 2 * n; ++steps) {
      d.Step();
      o.AddAll(*prompt);
    }
    EXPECT_TRUE(o.end);
    return steps;
  };
  EXPECT_LE(steps_of(2, 600), 160);  // five rows fit beside the stream
  slow = 20;
  steps_of(3, 600);
  slow = 1;
  for (int i = 0; i < 30; ++i) d.Step();
  EXPECT_LE(steps_of(4, 600), 200);
  stream->Cancel();
  d.RunUntilIdle();
}

TEST_P(EngineLoadTest, ACacheWithoutRoomMakesNobodyWaitForEver) {
  EngineOptions options = Options();
  options.cache.bytes_max = 8 << 10;
  CoreDriver d(Model(), options);
  SubmitSiblings(d);
  d.RunUntilIdle();
  ExpectAnswers(d);
}

TEST_P(EngineLoadTest, OtherSaltsAndUncachedRequestsDoNotWait) {
  CoreDriver d(Model(), Options());
  const auto shared = RandomTokens(7, 600);
  for (const char* salt : {"", "a", "b"}) {
    requests_.push_back(MakeRequest(Join(shared, {1}), 3));
    requests_.back().cache_salt = salt;
    streams_.push_back(d.Submit(requests_.back()));
  }
  requests_.push_back(MakeRequest(Join(shared, {2}), 3));
  requests_.back().cache_prompt = false;
  streams_.push_back(d.Submit(requests_.back()));
  d.RunUntilIdle();
  ExpectAnswers(d);
  EXPECT_EQ(d.stats().shared_waits, 0u);
  EXPECT_EQ(d.stats().replayed_tokens, 4u * 601u);
}

TEST_P(EngineLoadTest, AnUrgentRequestComesFirst) {
  EngineOptions options = Options();
  options.decode_concurrency = 1;
  CoreDriver d(Model(), options);
  auto running = d.Submit(MakeRequest(RandomTokens(1, 100), 30));
  d.Step();
  auto patient = d.Submit(MakeRequest(RandomTokens(2, 100), 3));
  Request r = MakeRequest(RandomTokens(3, 100), 3);
  r.priority = -1;
  auto urgent = d.Submit(r);
  Outcome o;
  while (!o.end) {
    d.Step();
    o.AddAll(*urgent);
  }
  Outcome other;
  other.AddAll(*patient);
  EXPECT_FALSE(other.reuse.has_value());
  d.RunUntilIdle();
}

TEST_P(EngineLoadTest, OneKeyDoesNotTakeAllSlots) {
  EngineOptions options = Options();
  options.decode_concurrency = 2;
  CoreDriver d(Model(), options);
  std::vector<std::shared_ptr<TokenStream>> greedy;
  for (uint64_t i = 0; i < 10; ++i) {
    Request r = MakeRequest(RandomTokens(i, 50), 20);
    r.share_key = "greedy";
    greedy.push_back(d.Submit(r));
  }
  d.Step();
  Request r = MakeRequest(RandomTokens(50, 50), 5);
  r.share_key = "modest";
  auto modest = d.Submit(r);
  Outcome o;
  while (!o.end) {
    d.Step();
    o.AddAll(*modest);
  }
  int ended = 0;
  for (auto& s : greedy) {
    Outcome g;
    g.AddAll(*s);
    ended += g.end.has_value();
  }
  EXPECT_LE(ended, 3);  // the next free slot was its own
  d.RunUntilIdle();
}

// The cache makes room for what the process takes beyond its allowance; live sequences keep theirs.
TEST_P(EngineLoadTest, WhatTheProcessGrowsByIsTakenFromTheCache) {
  CoreDriver probe(Model(), Options());
  EngineOptions options = Options();
  const uint64_t page = probe.core().block_pool().resident_block_bytes();
  options.memory_budget = probe.stats().scratch_bytes + 40 * page;
  const EngineStats* stats = nullptr;
  uint64_t grown = 0;
  bool known = true;
  options.resident_bytes = [&] {
    return known ? stats->scratch_bytes + stats->pool_bytes + grown : 0;
  };
  CoreDriver d(Model(), options);
  stats = &d.stats();
  const auto run = [&](uint64_t seed) {
    for (uint64_t i = seed; i < seed + 12; ++i) {
      requests_.push_back(MakeRequest(RandomTokens(i, 300), 100));
      streams_.push_back(d.Submit(requests_.back()));
      d.RunUntilIdle();
    }
  };
  run(0);
  EXPECT_EQ(d.stats().other_bytes, 0u);
  EXPECT_GT(d.stats().pool_bytes, 20 * page);
  grown = uint64_t{10} << 20;  // more than there is
  run(100);
  EXPECT_GE(d.stats().other_bytes, grown);
  EXPECT_LE(d.stats().pool_bytes, 15 * page);
  known = false;
  run(200);
  EXPECT_GE(d.stats().other_bytes, grown);
  EXPECT_LE(d.stats().pool_bytes, 15 * page);
  known = true;
  grown = 0;
  run(300);
  EXPECT_EQ(d.stats().other_bytes, 0u);
  EXPECT_GT(d.stats().pool_bytes, 20 * page);
  ExpectAnswers(d);
}

TEST_P(EngineLoadTest, ATightBudgetEvictsThenPreemptsAndChangesNoAnswer) {
  CoreDriver probe(Model(), Options());
  EngineOptions options = Options();
  const uint64_t page = probe.core().block_pool().resident_block_bytes();
  options.memory_budget = probe.stats().scratch_bytes + 40 * page;
  options.other_bytes = 10 * page;
  CoreDriver d(Model(), options);
  EXPECT_EQ(d.core().pool_budget(), 30 * page);
  for (uint64_t i = 0; i < 6; ++i) {
    requests_.push_back(MakeRequest(RandomTokens(i, 300), 400));
    streams_.push_back(d.Submit(requests_.back()));
  }
  for (int i = 0; i < 100000; ++i) {
    d.Step();
    ASSERT_LE(d.stats().pool_bytes, 30 * page);
    if (d.stats().in_engine == 0) break;
  }
  ExpectAnswers(d);
  EXPECT_GT(d.stats().evictions, 0u);
  EXPECT_GT(d.stats().preemptions, 0u);
}

// The cache may have more bytes than the budget leaves; pins must not take what sequences need.
TEST_P(EngineLoadTest, PinsLeaveRoomForSequencesUnderATightBudget) {
  EngineOptions options = Options();
  WithPages(40, options);
  CoreDriver d(Model(), options);
  const PrefixTree& tree = d.core().tree();
  ASSERT_LT(d.core().pool_budget(), options.cache.bytes_max);
  EXPECT_EQ(tree.options().bytes_max, d.core().pool_budget());
  EXPECT_LE(tree.pinned_bytes_max(), d.core().pool_budget() / 2);
}

// A block and a state of this model fill half a page and less.
TEST_P(EngineLoadTest, PinsCountInWholePages) {
  EngineOptions options = Options();
  const uint64_t page = WithPages(40, options);
  CoreDriver d(Model(), options);
  PrefixTree& tree = d.core().tree();
  int refused = 0;
  for (int i = 0; i < 6; ++i) {
    d.Run(RandomTokens(i, 256));
    for (const NodeInfo& node : tree.List())
      if (!node.pinned && node.end == 256)
        refused += tree.Pin(node.id).code() == StatusCode::kResourceExhausted;
    const PoolCounts held = tree.PinnedCounts();
    EXPECT_LE((held.blocks + held.states) * page, 20 * page);
  }
  EXPECT_GT(tree.pin_count(), 2u);
  EXPECT_GT(refused, 0);
  d.Run(RandomTokens(9, 15 * kBlockTokens));  // the other half is there for it
}

TEST_P(EngineLoadTest, AtTheEdgeOfTheBudgetCheckpointsOfTheOwnPathGiveWay) {
  EngineOptions options = Options();
  options.cache.stride = 32;
  WithPages(12, options);
  CoreDriver d(Model(), options);
  const int64_t fit = d.core().TokensThatFit();
  EXPECT_EQ(fit, 11 * kBlockTokens);
  for (int i = 0; i < 2; ++i) d.Run(RandomTokens(1, fit - 5), 5);
  auto other = RandomTokens(1, fit - 5);
  other[100] = (other[100] + 1) % 24;
  d.Run(other, 5);
}

TEST_P(EngineLoadTest, APromptThatCannotFitBesidePinsIsRefusedAtOnce) {
  EngineOptions options = Options();
  WithPages(41, options);
  CoreDriver d(Model(), options);
  const auto pinned = RandomTokens(1, 15 * kBlockTokens);
  d.Run(pinned, 1);
  PrefixTree& tree = d.core().tree();
  ASSERT_TRUE(tree.Pin(tree.List().back().id).ok());
  const int64_t beside = (41 - 16 - 1) * kBlockTokens;
  for (const int64_t n : {beside, beside + 300}) {
    auto stream = d.Submit(MakeRequest(RandomTokens(2, n), 4));
    Outcome o;
    o.AddAll(*stream);  // before any step
    ASSERT_TRUE(o.end);
    EXPECT_EQ(o.end->error.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(o.end->error.message().find("pins hold"), std::string::npos)
        << o.end->error.message();
  }
  EXPECT_EQ(d.stats().queue_length, 0);
  d.Run(RandomTokens(3, beside - 4), 4);
  // One that begins like the pinned one shares its blocks; an answer ends where the room does.
  const auto longer = Join(pinned, RandomTokens(4, beside - kBlockTokens));
  d.Run(longer, 4);
  auto stream = d.Submit(MakeRequest(longer, 1000));
  d.RunUntilIdle();
  Outcome o;
  o.AddAll(*stream);
  EXPECT_EQ(o.end->reason, FinishReason::kLength);
  EXPECT_EQ(std::ssize(o.tokens), kBlockTokens);
}

TEST_P(EngineLoadTest, WhatCanNeverFitIsRefusedWithTheNumbers) {
  EngineOptions options = Options();
  WithPages(12, options);
  auto model = std::make_shared<FakeModel>(Model());
  auto engine = Engine::Create(model, options);
  ASSERT_TRUE(engine.ok());
  const auto refused = (*engine)->Submit(MakeRequest(RandomTokens(1, 704), 5));
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.status().message().find("704 tokens"), std::string::npos);
  // The longest that fits; its answer is as long as there is room.
  auto stream = std::move((*engine)->Submit(MakeRequest(RandomTokens(1, 700), 500))).value();
  const Outcome o = Collect(*stream);
  EXPECT_EQ(o.end->reason, FinishReason::kLength);
  EXPECT_EQ(o.tokens.size(), 4u);
  options.memory_budget = 1000;
  EXPECT_EQ(Engine::Create(model, options).status().code(), StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace cairn
