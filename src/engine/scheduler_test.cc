#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>

namespace cairn {
namespace {

std::map<int, int> Rows(const std::vector<PlanSequence>& sequences, PlanLimits limits,
                        uint64_t turn = 0) {
  std::vector<PlannedRows> plan;
  Plan(sequences, limits, turn, plan);
  std::map<int, int> rows;
  for (auto& p : plan) {
    EXPECT_EQ(rows.count(p.index), 0u);
    rows[p.index] = p.rows;
  }
  return rows;
}

TEST(Plan, DecodeRowsComeFirst) {
  std::vector<PlannedRows> plan;
  Plan(std::vector<PlanSequence>{{0, 1000, false}, {1, 1, false}, {2, 1, false}}, {512, 64}, 0,
       plan);
  ASSERT_EQ(plan.size(), 3u);
  EXPECT_EQ(plan[0].index, 1);
  EXPECT_EQ(plan[1].index, 2);
  EXPECT_EQ(plan[2].index, 0);
  EXPECT_EQ(plan[2].rows, 510);
}

TEST(Plan, ShortPromptsShareAQuarterAndTheOneWhoseTurnItIsTakesTheRest) {
  EXPECT_EQ(Rows({{0, 10000, false}, {1, 20, false}, {2, 9000, false, 0, 0, 1}}, {512, 64}),
            (std::map<int, int>{{0, 384}, {1, 20}, {2, 108}}));
  // The turn goes on to who has waited longest.
  EXPECT_EQ(Rows({{0, 10000, false, 0, 0, 7}, {1, 20, false, 0, 0, 3}, {2, 9000, false, 0, 0, 5}},
                 {512, 64}),
            (std::map<int, int>{{1, 20}, {2, 492}}));
}

TEST(Plan, StreamsLimitThePromptsRows) {
  EXPECT_EQ(Rows({{0, 10000, false}, {1, 1, false}, {2, 1, false}}, {512, 64, 30}),
            (std::map<int, int>{{0, 30}, {1, 1}, {2, 1}}));
}

// Two rows of a deep prompt fit beside the streams, or eight of one that begins.
TEST(Plan, AShortPromptBesideADeepOneGetsMoreRowsForItsCost) {
  std::vector<PlanSequence> s = {{0, 10000, false}, {1, 64, false}, {2, 1, false}};
  s[0].row_cost = 1;
  s[1].row_cost = 0.25;
  EXPECT_EQ(Rows(s, {512, 64, 2}), (std::map<int, int>{{0, 1}, {1, 4}, {2, 1}}));
  s[0].led_turn = 1;
  EXPECT_EQ(Rows(s, {512, 64, 2}), (std::map<int, int>{{1, 8}, {2, 1}}));
  // Where the short ones leave less than a row of the deep one whose turn it is, it still gets one.
  s[0].led_turn = 0;
  EXPECT_EQ(Rows(s, {512, 64, 1}), (std::map<int, int>{{0, 1}, {1, 1}, {2, 1}}));
}

TEST(Plan, MoreUrgentPromptsComeFirst) {
  EXPECT_EQ(
      Rows({{0, 400, false, 1}, {1, 300, false, -1, 900}, {2, 300, false, -1, 0, 1}}, {512, 64}),
      (std::map<int, int>{{1, 212}, {2, 300}}));
  EXPECT_EQ(Rows({{0, 1000, false, 1}, {1, 2000, false, -1}}, {512, 64}),
            (std::map<int, int>{{1, 512}}));
}

TEST(Plan, KeysTakeTurnsByTheRowsTheyHad) {
  std::vector<PlanSequence> s;
  for (int i = 0; i < 8; ++i) s.push_back({i, 100000, false});  // seven of one key, one of another
  std::map<bool, int64_t> rows;                                 // of the one alone, or not
  for (uint64_t turn = 1; turn < 400; ++turn) {
    for (PlanSequence& q : s) q.key_rows = static_cast<uint64_t>(rows[q.index == 7]);
    std::vector<PlannedRows> plan;
    const auto leader = Plan(s, {100, 64}, turn, plan);
    ASSERT_TRUE(leader);
    s[static_cast<size_t>(*leader)].led_turn = turn;
    for (const auto& p : plan) {
      rows[p.index == 7] += p.rows;
      s[static_cast<size_t>(p.index)].rows_wanted -= p.rows;
    }
  }
  EXPECT_NEAR(static_cast<double>(rows[true]) / static_cast<double>(rows[false]), 1, 0.35);
}

TEST(Candidates, PriorityThenPreemptedThenKeysThatHaveLess) {
  const Candidate plain{}, urgent{-1}, preempted{0, true}, greedy{0, false, 3},
      served{0, false, 0, 9};
  EXPECT_LT(urgent, preempted);
  EXPECT_LT(preempted, plain);
  EXPECT_LT(plain, greedy);
  EXPECT_LT(plain, served);
  EXPECT_LT(served, greedy);
}

TEST(FairShare, IdleTimeIsNoCredit) {
  FairShare share;
  share.Enter(1);
  share.Charge(1, 1000);
  share.Enter(2);  // comes later: starts where the least served one is
  EXPECT_EQ(share.rows(2), 1000u);
  share.Charge(2, 50);
  share.Leave(1);
  share.Enter(1);
  EXPECT_EQ(share.rows(1), 1050u);
  share.Enter(1);
  share.Leave(1);
  EXPECT_EQ(share.size(), 2u);
  share.Leave(1);
  share.Leave(2);
  EXPECT_EQ(share.size(), 0u);
}

TEST(Plan, FewerRowsThanSequencesRotate) {
  const std::vector<PlanSequence> s = {{0, 1, false}, {1, 1, false}, {2, 1, false}};
  EXPECT_EQ(Rows(s, {2, 64}, 0), (std::map<int, int>{{0, 1}, {1, 1}}));
  EXPECT_EQ(Rows(s, {2, 64}, 1), (std::map<int, int>{{1, 1}, {2, 1}}));
  EXPECT_EQ(Rows(s, {2, 64}, 2), (std::map<int, int>{{0, 1}, {2, 1}}));
}

TEST(Plan, PromptLogprobsAreLimitedByLogitRows) {
  EXPECT_EQ(Rows({{0, 1000, true}, {1, 1000, false, 0, 0, 1}, {2, 1, false}}, {512, 64}),
            (std::map<int, int>{{0, 62}, {1, 449}, {2, 1}}));
  EXPECT_EQ(Rows({{0, 1000, true, 0, 0, 1}, {1, 1000, false}, {2, 1, false}}, {512, 64}),
            (std::map<int, int>{{1, 511}, {2, 1}}));
}

TEST(Plan, RandomPlansKeepTheLimits) {
  std::mt19937 random(1);
  for (int round = 0; round < 3000; ++round) {
    std::vector<PlanSequence> s;
    const int n = random() % 10;
    for (int i = 0; i < n; ++i)
      s.push_back({i, random() % 3 ? 1 + int64_t(random() % 300) : 1, random() % 4 == 0});
    for (PlanSequence& q : s) {
      q.priority = static_cast<int>(random() % 3);
      q.key_rows = random() % 3;
      q.led_turn = random() % 5;
      q.row_cost = (1 + random() % 8) / 8.0;
    }
    PlanLimits limits{1 + int(random() % 64), 1 + int(random() % 12)};
    const bool costs_count = random() % 2 == 0;
    if (costs_count) limits.prefill_rows_max = 1 + int(random() % 64);
    std::vector<PlannedRows> plan;
    Plan(s, limits, random(), plan);
    int rows = 0, logit_rows = 0;
    double prefill_cost = 0;
    for (auto& p : plan) {
      if (s[p.index].rows_wanted > 1) prefill_cost += p.rows * s[p.index].row_cost;
      EXPECT_GE(p.rows, 1);
      EXPECT_LE(p.rows, s[p.index].rows_wanted);
      rows += p.rows;
      logit_rows += s[p.index].logits_each_row ? p.rows : 1;
    }
    EXPECT_LE(prefill_cost, limits.prefill_rows_max + 1.0);
    EXPECT_LE(rows, limits.rows_max);
    EXPECT_LE(logit_rows, limits.logit_rows_max);
    EXPECT_EQ(plan.empty(), s.empty());
    const bool plain = std::none_of(s.begin(), s.end(), [](auto& q) { return q.logits_each_row; });
    if (plain && limits.logit_rows_max >= n && !costs_count) {  // no row is left unused
      int64_t wanted = 0;
      for (auto& q : s) wanted += q.rows_wanted;
      EXPECT_EQ(rows, std::min<int64_t>(wanted, limits.rows_max));
    }
  }
}

}  // namespace
}  // namespace cairn
