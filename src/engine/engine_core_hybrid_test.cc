// What only layouts with a recurrent state do, on an engine stepped by hand.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/engine_core.h"
#include "support/engine_harness.h"

namespace cairn {
namespace {

TEST(EngineCoreHybrid, GridMarksInPromptAndGeneration) {
  CoreDriver d;
  const auto prompt = RandomTokens(3, 70);
  const Outcome o = d.Run(prompt, 80);
  const auto at = d.Checkpoints(Join(prompt, o.tokens));
  for (int64_t p : {32, 64, 70, 96, 128, 149})
    EXPECT_TRUE(std::find(at.begin(), at.end(), p) != at.end()) << p;
  EXPECT_GT(d.model().taps_inside(), 0);
}

TEST(EngineCoreHybrid, ABranchMarkIsTakenByTheRequestThatRevealsIt) {
  EngineOptions options = CoreDriver::SmallOptions();
  options.cache.stride = 1024;
  CoreDriver d({}, options);
  const auto shared = RandomTokens(1, 300);
  d.Run(Join(shared, RandomTokens(2, 50)));
  EXPECT_EQ(d.Run(Join(shared, RandomTokens(3, 60))).reuse->restore_point, 0);
  EXPECT_GE(d.Run(Join(shared, RandomTokens(4, 70))).reuse->restore_point, 300);
  EXPECT_GT(d.model().mid_block_restores(), 0);
}

TEST(EngineCoreHybrid, TurnHeadersAreMarks) {
  EngineOptions options = CoreDriver::SmallOptions();
  options.cache.stride = 4096;
  options.turn_headers = {{23, 7}};
  CoreDriver d({}, options);
  std::vector<Token> prompt;
  std::vector<int64_t> starts;
  for (int turn = 0; turn < 3; ++turn) {
    starts.push_back(static_cast<int64_t>(prompt.size()));
    prompt = Join(prompt, {23, 7});
    prompt = Join(prompt, RandomTokens(turn, 60, 20));
  }
  d.Run(prompt);
  const auto at = d.Checkpoints(prompt);
  EXPECT_TRUE(std::find(at.begin(), at.end(), starts[1]) != at.end());
  EXPECT_TRUE(std::find(at.begin(), at.end(), starts[2]) != at.end());
}

TEST(EngineCoreHybrid, TheSecondSequenceHitsWhileTheFirstStillRuns) {
  CoreDriver d;
  const auto shared = RandomTokens(1, 200);
  auto first = d.Submit(MakeRequest(Join(shared, RandomTokens(2, 40)), 300));
  for (int i = 0; i < 20; ++i) d.Step();
  auto second = d.Submit(MakeRequest(Join(shared, RandomTokens(3, 40)), 4));
  for (int i = 0; i < 20; ++i) d.Step();
  Outcome o;
  o.AddAll(*second);
  ASSERT_TRUE(o.end);
  EXPECT_EQ(o.reuse->restore_point, 192);
  first->Cancel();
  d.RunUntilIdle();
}

TEST(EngineCoreHybrid, AShortPromptIsNotStuckBehindALongOne) {
  CoreDriver d;
  d.Submit(MakeRequest(RandomTokens(1, 3000), 4));
  d.Step();
  auto quick = d.Submit(MakeRequest(RandomTokens(2, 20), 2));
  for (int i = 0; i < 3; ++i) d.Step();
  Outcome o;
  o.AddAll(*quick);
  EXPECT_TRUE(o.end.has_value());
  d.RunUntilIdle();
}

TEST(EngineCoreHybrid, AThrowInForwardEndsTheSequencesAndLosesNothingElse) {
  bool fail = false;
  FakeModelOptions model;
  model.on_forward = [&](const ForwardBatch&) {
    if (fail) throw std::bad_alloc();
  };
  CoreDriver d(model);
  const auto prompt = RandomTokens(1, 100);
  d.Run(prompt);
  auto a = d.Submit(MakeRequest(Join(prompt, RandomTokens(2, 100)), 5));
  d.Step();
  fail = true;
  EXPECT_THROW(d.core().Step(), std::bad_alloc);
  EXPECT_TRUE(d.core().Recover(Internal("out of memory")));
  fail = false;
  Outcome o;
  o.AddAll(*a);
  ASSERT_TRUE(o.end);
  EXPECT_EQ(o.end->reason, FinishReason::kError);
  EXPECT_EQ(d.stats().slots_busy, 0);
  EXPECT_EQ(d.stats().live_bytes, 0u);
  d.core().CheckInvariants();
  EXPECT_GE(d.Run(prompt).reuse->restore_point, 100);
}

}  // namespace
}  // namespace cairn
