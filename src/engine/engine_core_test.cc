// The engine stepped by hand on a model that notices every wrong state, KV row and tap.
#include "engine/engine_core.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "support/engine_harness.h"

namespace cairn {
namespace {

class EngineCoreTest : public ::testing::TestWithParam<bool> {
 protected:
  FakeModelOptions Model() const { return {.hybrid = GetParam(), .on_forward = {}}; }
};
INSTANTIATE_TEST_SUITE_P(Layouts, EngineCoreTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Hybrid" : "KvOnly"; });

TEST_P(EngineCoreTest, ColdRunEqualsThePlainRun) {
  for (int64_t n : {1, 2, 31, 32, 33, 63, 64, 65, 200}) {
    CoreDriver d(Model());
    const Outcome o = d.Run(RandomTokens(1000 + n, n), 5);
    ASSERT_TRUE(o.reuse);
    EXPECT_EQ(o.reuse->restore_point, 0);
    EXPECT_EQ(o.progress.back().processed, n);
  }
}

TEST_P(EngineCoreTest, RegenerateReplaysNothing) {
  CoreDriver d(Model());
  for (int64_t n : {1, 31, 32, 33, 64, 96, 128, 150}) {  // k * stride included
    const auto prompt = RandomTokens(n, n);
    d.Run(prompt, 5);
    const int64_t rows = d.model().rows_run();
    const Outcome again = d.Run(prompt, 5);
    EXPECT_EQ(again.reuse->restore_point, n);
    EXPECT_EQ(again.reuse->miss_reason, std::nullopt);
    EXPECT_EQ(again.reuse->matched, n);
    EXPECT_EQ(d.model().rows_run() - rows, 4);  // the first token comes from the hidden row
  }
}

TEST_P(EngineCoreTest, EditedMiddleRestoresNewestCheckpoint) {
  CoreDriver d(Model());
  const auto a = RandomTokens(1, 320);
  d.Run(a);
  auto b = a;
  b[300] = (b[300] + 1) % 24;
  const Outcome o = d.Run(b);
  EXPECT_EQ(o.reuse->matched, 300);
  EXPECT_EQ(o.reuse->restore_point, GetParam() ? 288 : 300);
  EXPECT_EQ(o.reuse->miss_reason,
            GetParam() ? std::optional(MissReason::kBetweenCheckpoints) : std::nullopt);
}

TEST_P(EngineCoreTest, BothBranchesAreKept) {
  CoreDriver d(Model());
  const auto a = RandomTokens(1, 321);
  auto b = a;
  b[128] = (b[128] + 1) % 24;
  d.Run(a);
  EXPECT_EQ(d.Run(b).reuse->restore_point, 128);
  EXPECT_EQ(d.Run(a).reuse->restore_point, 321);
  EXPECT_EQ(d.Run(b).reuse->restore_point, 321);
}

TEST_P(EngineCoreTest, NextTurnGoesOnFromTheFinishCheckpoint) {
  CoreDriver d(Model());
  const auto prompt = RandomTokens(5, 100);
  const Outcome first = d.Run(prompt, 20);
  const Outcome next = d.Run(Join(Join(prompt, first.tokens), RandomTokens(6, 30)), 4);
  EXPECT_GE(next.reuse->restore_point, 119);  // the last sampled token was never fed
  EXPECT_LE(next.reuse->restore_point, 120);
}

TEST_P(EngineCoreTest, RestoreAfterEvictionEqualsCold) {
  EngineOptions options = CoreDriver::SmallOptions();
  options.cache.bytes_max = GetParam() ? 40 << 10 : 20 << 10;
  CoreDriver d(Model(), options);
  for (int round = 0; round < 3; ++round)
    for (int i = 0; i < 8; ++i) d.Run(RandomTokens(i, 250 + i), 6);
  EXPECT_GT(d.stats().evictions, 0u);
  const auto prompt = RandomTokens(7, 257);
  EXPECT_EQ(d.Run(prompt, 6).reuse->restore_point, 257);  // the last one is kept
}

TEST_P(EngineCoreTest, AbortedPrefillGoesOn) {
  EngineOptions options = CoreDriver::SmallOptions();
  options.step_rows_max = 40;  // 120 is more than 16 tokens after the grid mark at 96
  CoreDriver d(Model(), options);
  const auto prompt = RandomTokens(3, 400);
  auto stream = d.Submit(MakeRequest(prompt, 4));
  for (int i = 0; i < 3; ++i) d.Step();
  Outcome aborted;
  aborted.AddAll(*stream);
  const int64_t processed = aborted.progress.back().processed;
  EXPECT_EQ(processed, 3 * 40);
  stream->Cancel();
  d.RunUntilIdle();
  aborted.AddAll(*stream);
  EXPECT_EQ(aborted.end->reason, FinishReason::kCancelled);
  EXPECT_EQ(d.stats().slots_busy, 0);
  const int64_t rows = d.model().rows_run();
  EXPECT_EQ(d.Run(prompt, 4).reuse->restore_point, processed);
  EXPECT_EQ(d.model().rows_run() - rows, 400 - processed + 3);
}

TEST_P(EngineCoreTest, CancelDuringDecodeKeepsState) {
  CoreDriver d(Model());
  Request r = MakeRequest(RandomTokens(3, 70), 50);
  const Outcome want = ExpectedOutcome(d.model(), r, {});
  auto stream = d.Submit(r);
  for (int i = 0; i < 20; ++i) d.Step();
  stream->Cancel();
  d.RunUntilIdle();
  Outcome got;
  got.AddAll(*stream);
  EXPECT_EQ(Difference(got, want, true), "");
  ASSERT_GT(got.tokens.size(), 10u);
  EXPECT_LT(got.tokens.size(), 50u);
  const auto all = Join(r.prompt, got.tokens);
  const int64_t fed = static_cast<int64_t>(all.size()) - 1;
  const Outcome next = d.Run(Join(all, RandomTokens(4, 9)), 3);
  EXPECT_GE(next.reuse->restore_point, fed - (GetParam() ? 16 : 0));
}

TEST_P(EngineCoreTest, CancelQueued) {
  EngineOptions options = CoreDriver::SmallOptions();
  options.decode_concurrency = 1;
  CoreDriver d(Model(), options);
  auto a = d.Submit(MakeRequest(RandomTokens(1, 50), 20));
  auto b = d.Submit(MakeRequest(RandomTokens(2, 50), 20));
  d.Step();
  EXPECT_EQ(d.stats().queue_length, 1);
  b->Cancel();
  d.Step();
  EXPECT_EQ(d.stats().queue_length, 0);
  Outcome o;
  o.AddAll(*b);
  ASSERT_TRUE(o.end);
  EXPECT_EQ(o.end->reason, FinishReason::kCancelled);
  EXPECT_FALSE(o.reuse.has_value());
  d.RunUntilIdle();
}

TEST_P(EngineCoreTest, DeadlineEndsWaitingAndRunning) {
  EngineOptions options = CoreDriver::SmallOptions();
  options.decode_concurrency = 1;
  CoreDriver d(Model(), options);
  Request r = MakeRequest(RandomTokens(1, 50), 4000);
  r.deadline_ms = 1;
  auto a = d.Submit(r);
  auto b = d.Submit(r);
  d.Step();
  std::this_thread::sleep_for(std::chrono::milliseconds(3));
  d.RunUntilIdle();
  for (auto& stream : {a, b}) {
    Outcome o;
    o.AddAll(*stream);
    ASSERT_TRUE(o.end);
    EXPECT_EQ(o.end->reason, FinishReason::kError);
    EXPECT_EQ(o.end->error.code(), StatusCode::kDeadlineExceeded);
  }
}

TEST_P(EngineCoreTest, BatchedEqualsAlone) {
  CoreDriver d(Model());
  std::vector<Request> requests;
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (int i = 0; i < 12; ++i) {
    Request r = MakeRequest(RandomTokens(i % 9, 20 + 37 * i), 5 + i);
    r.sampling.temperature = i % 2 ? 0.8f : 0.0f;
    r.sampling.seed = i;
    r.logprobs = 3;
    requests.push_back(r);
    streams.push_back(d.Submit(r));
  }
  d.RunUntilIdle();
  for (int i = 0; i < 12; ++i) {
    Outcome got;
    got.AddAll(*streams[i]);
    EXPECT_EQ(Difference(got, ExpectedOutcome(d.model(), requests[i], {})), "") << i;
  }
  EXPECT_EQ(d.model().batch_max(), 4);
  EXPECT_GT(d.model().mixed_steps(), 0);
}

TEST_P(EngineCoreTest, PreemptionKeepsTokens) {
  EngineOptions options = CoreDriver::SmallOptions();
  CoreDriver probe(Model());
  const uint64_t block = probe.core().block_pool().block_bytes();
  for (const bool with_cache : {true, false}) {
    options.live_bytes_max = 12 * block;
    options.cache.bytes_max = with_cache ? 1 << 20 : 0;
    CoreDriver d(Model(), options);
    std::vector<Request> requests;
    std::vector<std::shared_ptr<TokenStream>> streams;
    for (int i = 0; i < 4; ++i) {
      Request r = MakeRequest(RandomTokens(i, 150), 200);
      r.sampling.temperature = 0.5f;
      r.sampling.seed = i;
      requests.push_back(r);
      streams.push_back(d.Submit(r));
    }
    d.RunUntilIdle();
    for (int i = 0; i < 4; ++i) {
      Outcome got;
      got.AddAll(*streams[i]);
      EXPECT_EQ(Difference(got, ExpectedOutcome(d.model(), requests[i], {})), "") << i;
    }
    if (!with_cache) {
      EXPECT_GT(d.stats().preemptions, 0u);
    }
    EXPECT_EQ(d.stats().live_bytes, 0u);
  }
}

TEST_P(EngineCoreTest, EmptyPoolEvictsThenPreempts) {
  CoreDriver d(Model());
  d.core().SetPoolLimits(14, 40);
  std::vector<Request> requests;
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (int i = 0; i < 6; ++i) {
    Request r = MakeRequest(RandomTokens(i, 180 + i), 150);
    requests.push_back(r);
    streams.push_back(d.Submit(r));
  }
  d.RunUntilIdle();
  for (int i = 0; i < 6; ++i) {
    Outcome got;
    got.AddAll(*streams[i]);
    EXPECT_EQ(Difference(got, ExpectedOutcome(d.model(), requests[i], {})), "") << i;
  }
  EXPECT_GT(d.stats().evictions, 0u);
  EXPECT_GT(d.stats().preemptions, 0u);
}

TEST_P(EngineCoreTest, ARequestThatCannotFitIsAnErrorAndTheNextOneRuns) {
  CoreDriver d(Model());
  d.core().SetPoolLimits(3, 40);
  auto stream = d.Submit(MakeRequest(RandomTokens(1, 1000), 4));
  d.RunUntilIdle();
  Outcome o;
  o.AddAll(*stream);
  ASSERT_TRUE(o.end);
  EXPECT_EQ(o.end->reason, FinishReason::kError);
  EXPECT_EQ(o.end->error.code(), StatusCode::kResourceExhausted);
  d.Run(RandomTokens(2, 100), 4);
}

TEST_P(EngineCoreTest, StopStringsHoldBackFinish) {
  CoreDriver d(Model());
  Request r = MakeRequest(RandomTokens(3, 80), 40);
  r.has_stop_strings = true;
  for (const int64_t kept : {40, 39, 10}) {
    r.cache_salt = std::to_string(kept);
    auto stream = d.Submit(r);
    d.RunUntilIdle();
    EXPECT_EQ(d.core().closing_count(), 1u);
    Outcome o;
    o.AddAll(*stream);
    const auto all = Join(r.prompt, o.tokens);
    auto published = [&] {
      const auto p = d.Checkpoints(all, r.cache_salt);
      return std::count(p.begin(), p.end(), 119);
    };
    EXPECT_EQ(published(), 0);
    stream->End(kept);
    d.RunUntilIdle();
    EXPECT_EQ(d.core().closing_count(), 0u);
    EXPECT_EQ(published(), kept >= 39 ? 1 : 0);
  }
}

// The text before an end token may still turn out to hold a stop string.
TEST_P(EngineCoreTest, StopStringsHoldBackFinishAfterAnEndTokenToo) {
  EngineOptions options = CoreDriver::SmallOptions();
  options.end_tokens = {0, 1, 2};
  CoreDriver d(Model(), options);
  int held_back = 0, published = 0;
  for (int i = 0; i < 40; ++i) {
    Request r = MakeRequest(RandomTokens(i, 40), 60);
    r.has_stop_strings = true;
    r.min_tokens = 18;  // more than 16 tokens after the prompt's end
    auto stream = d.Submit(r);
    d.RunUntilIdle();
    Outcome o;
    o.AddAll(*stream);
    const auto generated = static_cast<int64_t>(o.tokens.size());
    const int64_t position = 40 + generated;
    const bool cut = i % 2 == 0;
    if (o.end->reason == FinishReason::kStop) {
      EXPECT_EQ(d.core().closing_count(), 1u);
    }
    stream->End(cut ? generated - 1 : generated);
    d.RunUntilIdle();
    EXPECT_EQ(d.core().closing_count(), 0u);
    if (o.end->reason != FinishReason::kStop || position % 32 <= 16) continue;
    const auto p = d.Checkpoints(Join(r.prompt, o.tokens));
    EXPECT_EQ(std::count(p.begin(), p.end(), position), cut ? 0 : 1);
    ++(cut ? held_back : published);
  }
  EXPECT_GT(held_back, 0);
  EXPECT_GT(published, 0);
}

TEST_P(EngineCoreTest, StopStringInTheMiddleStopsTheSequence) {
  CoreDriver d(Model());
  Request r = MakeRequest(RandomTokens(3, 70), 400);
  r.has_stop_strings = true;
  auto stream = d.Submit(r);
  for (int i = 0; i < 30; ++i) d.Step();
  stream->End(12);
  d.RunUntilIdle();
  Outcome o;
  o.AddAll(*stream);
  EXPECT_EQ(o.end->reason, FinishReason::kStop);
  EXPECT_LT(o.tokens.size(), 40u);
  EXPECT_EQ(d.core().closing_count(), 0u);
  for (int64_t p : d.Checkpoints(Join(r.prompt, o.tokens)))
    if (p % 32 != 0) {
      EXPECT_LE(p, 70 + 12);
    }
}

TEST_P(EngineCoreTest, ClosingEndsByItselfWithoutAWord) {
  EngineOptions options = CoreDriver::SmallOptions();
  options.closing_ms_max = 1;
  CoreDriver d(Model(), options);
  Request r = MakeRequest(RandomTokens(3, 70), 5);
  r.has_stop_strings = true;
  auto stream = d.Submit(r);
  d.RunUntilIdle();
  std::this_thread::sleep_for(std::chrono::milliseconds(3));
  d.Step();
  EXPECT_EQ(d.core().closing_count(), 0u);
  EXPECT_EQ(d.stats().live_bytes, 0u);
}

TEST_P(EngineCoreTest, GaugesReturn) {
  CoreDriver d(Model());
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (int i = 0; i < 20; ++i) streams.push_back(d.Submit(MakeRequest(RandomTokens(i, 100), 50)));
  for (int i = 0; i < 9; ++i) d.Step();
  EXPECT_GT(d.stats().slots_busy, 0);
  EXPECT_GT(d.stats().queue_length, 0);
  for (auto& s : streams) s->Cancel();
  d.Step();
  EXPECT_EQ(d.stats().slots_busy, 0);
  EXPECT_EQ(d.stats().queue_length, 0);
  EXPECT_EQ(d.stats().live_bytes, 0u);
  d.core().tree().Clear();
  d.Step();
  EXPECT_EQ(d.stats().cache_bytes, 0u);
  EXPECT_EQ(d.stats().checkpoints, 0u);
  EXPECT_EQ(d.core().block_pool().held(), 0u);
}

TEST_P(EngineCoreTest, SaltsAreSeparate) {
  CoreDriver d(Model());
  Request r = MakeRequest(RandomTokens(3, 100), 4);
  r.cache_salt = "a";
  d.Run(r);
  r.cache_salt = "b";
  const Outcome other = d.Run(r);
  EXPECT_EQ(other.reuse->restore_point, 0);
  EXPECT_EQ(other.reuse->miss_reason, MissReason::kEmptyCache);
  r.cache_salt = "a";
  EXPECT_EQ(d.Run(r).reuse->restore_point, 100);
}

TEST_P(EngineCoreTest, CachePromptFalseNeitherReadsNorWrites) {
  CoreDriver d(Model());
  Request r = MakeRequest(RandomTokens(3, 100), 4);
  r.cache_prompt = false;
  EXPECT_EQ(d.Run(r).reuse->miss_reason, MissReason::kDisabledByRequest);
  EXPECT_EQ(d.stats().cache_bytes, 0u);
  r.cache_prompt = true;
  EXPECT_EQ(d.Run(r).reuse->restore_point, 0);
  const uint64_t bytes = d.stats().cache_bytes;
  r.cache_prompt = false;
  EXPECT_EQ(d.Run(r).reuse->restore_point, 0);
  EXPECT_EQ(d.stats().cache_bytes, bytes);
}

TEST_P(EngineCoreTest, CacheOffIsAnEmptyCache) {
  EngineOptions options = CoreDriver::SmallOptions();
  options.cache.bytes_max = 0;
  CoreDriver d(Model(), options);
  for (int i = 0; i < 2; ++i) {
    const Outcome o = d.Run(RandomTokens(3, 100), 4);
    EXPECT_EQ(o.reuse->restore_point, 0);
    EXPECT_EQ(o.reuse->miss_reason, MissReason::kEmptyCache);
  }
  Request r = MakeRequest(RandomTokens(1, 20), 1);
  r.prompt_logprobs = true;
  EXPECT_EQ(d.Run(r).reuse->miss_reason, MissReason::kPromptLogprobs);
  EXPECT_EQ(d.core().block_pool().held(), 0u);
}

TEST_P(EngineCoreTest, PromptLogprobsRunFromTokenZeroAndStillPublish) {
  CoreDriver d(Model());
  Request r = MakeRequest(RandomTokens(3, 150), 4);
  r.prompt_logprobs = true;
  r.logprobs = 2;
  for (int i = 0; i < 2; ++i) {
    const Outcome o = d.Run(r);
    EXPECT_EQ(o.reuse->restore_point, 0);
    EXPECT_EQ(o.reuse->miss_reason, MissReason::kPromptLogprobs);
    EXPECT_EQ(o.reuse->matched, i == 0 ? 0 : 150);
    EXPECT_EQ(o.prompt_logprobs.size(), 149u);
  }
  r.prompt_logprobs = false;
  EXPECT_EQ(d.Run(r).reuse->restore_point, 150);
  r.prompt = {5};
  r.prompt_logprobs = true;
  EXPECT_EQ(d.Run(r).reuse->miss_reason, MissReason::kPromptLogprobs);
}

TEST_P(EngineCoreTest, MaxTokensZeroPrefillsOnly) {
  CoreDriver d(Model());
  const auto prompt = RandomTokens(3, 100);
  for (int i = 0; i < 2; ++i) {
    const Outcome o = d.Run(prompt, 0);
    EXPECT_EQ(o.end->reason, FinishReason::kLength);
    EXPECT_EQ(o.reuse->restore_point, i == 0 ? 0 : 100);
  }
  EXPECT_EQ(d.Run(prompt, 3).reuse->restore_point, 100);
}

TEST_P(EngineCoreTest, EndTokensStopAndAreNotSent) {
  EngineOptions options = CoreDriver::SmallOptions();
  options.end_tokens = {0, 1, 2};
  CoreDriver d(Model(), options);
  int stopped = 0;
  for (int i = 0; i < 12; ++i) {
    Request r = MakeRequest(RandomTokens(i, 40), 30);
    if (i % 3 == 1) r.min_tokens = 10;
    if (i % 3 == 2) r.ignore_eos = true;
    if (i % 4 == 0) r.stop_token_ids = {7};
    const Outcome o = d.Run(r);
    stopped += o.end->reason == FinishReason::kStop;
    if (i % 3 == 1) {
      EXPECT_GE(o.tokens.size(), 10u);
    }
    if (i % 3 == 2 && i % 4 != 0) {
      EXPECT_EQ(o.tokens.size(), 30u);
    }
    for (Token t : o.tokens) EXPECT_GT(t, 2);
  }
  EXPECT_GT(stopped, 3);
}

TEST_P(EngineCoreTest, MaxTokensIsClampedToTheContext) {
  FakeModelOptions model = Model();
  model.context_length = 128;
  CoreDriver d(std::move(model));
  EXPECT_EQ(d.Run(RandomTokens(1, 100), 1000).tokens.size(), 28u);
}

TEST_P(EngineCoreTest, TheFaultOfRandomNumbersBySlotIsSeen) {
  EngineOptions options = CoreDriver::SmallOptions();
  options.faults.random_by_slot = true;
  CoreDriver d(Model(), options);
  int different = 0;
  std::vector<Request> requests;
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (int i = 0; i < 4; ++i) {
    Request r = MakeRequest(RandomTokens(i, 40), 20);
    r.sampling.temperature = 1.0f;
    requests.push_back(r);
    streams.push_back(d.Submit(r));
  }
  d.RunUntilIdle();
  for (int i = 0; i < 4; ++i) {
    Outcome got;
    got.AddAll(*streams[i]);
    different += !Difference(got, ExpectedOutcome(d.model(), requests[i], {})).empty();
  }
  EXPECT_GE(different, 3);
}

TEST_P(EngineCoreTest, TheFaultOfAStaleBlockIsSeen) {
  EngineOptions options = CoreDriver::SmallOptions();
  options.cache.fault = CacheFault::kStaleBlock;
  CoreDriver d(Model(), options);
  // Two prompts that part inside a block: it has two versions. The third needs the second's.
  const auto shared = RandomTokens(1, 100);
  const auto second = Join(shared, RandomTokens(2, 60));
  for (const auto& prompt : {Join(shared, RandomTokens(3, 60)), second, second})
    d.Submit(MakeRequest(Join(prompt, RandomTokens(4, 10)), 2)), d.RunUntilIdle();
  d.Submit(MakeRequest(Join(second, RandomTokens(5, 40)), 2));
  d.RunUntilIdle();
  EXPECT_FALSE(d.model().TakeViolations().empty());
}

}  // namespace
}  // namespace cairn
