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

TEST(Plan, AShortPromptTakesWhatItNeedsAndLeavesTheRest) {
  EXPECT_EQ(Rows({{0, 10000, false}, {1, 20, false}, {2, 10000, false}}, {512, 64}),
            (std::map<int, int>{{0, 246}, {1, 20}, {2, 246}}));
}

TEST(Plan, FewerRowsThanSequencesRotate) {
  const std::vector<PlanSequence> s = {{0, 1, false}, {1, 1, false}, {2, 1, false}};
  EXPECT_EQ(Rows(s, {2, 64}, 0), (std::map<int, int>{{0, 1}, {1, 1}}));
  EXPECT_EQ(Rows(s, {2, 64}, 1), (std::map<int, int>{{1, 1}, {2, 1}}));
  EXPECT_EQ(Rows(s, {2, 64}, 2), (std::map<int, int>{{0, 1}, {2, 1}}));
}

TEST(Plan, PromptLogprobsAreLimitedByLogitRows) {
  EXPECT_EQ(Rows({{0, 1000, true}, {1, 1000, false}, {2, 1, false}}, {512, 64}),
            (std::map<int, int>{{0, 62}, {1, 449}, {2, 1}}));
}

TEST(Plan, RandomPlansKeepTheLimits) {
  std::mt19937 random(1);
  for (int round = 0; round < 3000; ++round) {
    std::vector<PlanSequence> s;
    const int n = random() % 10;
    for (int i = 0; i < n; ++i)
      s.push_back({i, random() % 3 ? 1 + int64_t(random() % 300) : 1, random() % 4 == 0});
    const PlanLimits limits{1 + int(random() % 64), 1 + int(random() % 12)};
    std::vector<PlannedRows> plan;
    Plan(s, limits, random(), plan);
    int rows = 0, logit_rows = 0;
    for (auto& p : plan) {
      EXPECT_GE(p.rows, 1);
      EXPECT_LE(p.rows, s[p.index].rows_wanted);
      rows += p.rows;
      logit_rows += s[p.index].logits_each_row ? p.rows : 1;
    }
    EXPECT_LE(rows, limits.rows_max);
    EXPECT_LE(logit_rows, limits.logit_rows_max);
    EXPECT_EQ(plan.empty(), s.empty());
    const bool plain = std::none_of(s.begin(), s.end(), [](auto& q) { return q.logits_each_row; });
    if (plain && limits.logit_rows_max >= n) {  // no row is left unused
      int64_t wanted = 0;
      for (auto& q : s) wanted += q.rows_wanted;
      EXPECT_EQ(rows, std::min<int64_t>(wanted, limits.rows_max));
    }
  }
}

}  // namespace
}  // namespace cairn
