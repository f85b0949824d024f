#include "cache/reuse_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>

#include "cache/value_queue.h"

namespace cairn {
namespace {

const ReuseClass kChat(kMarkFinish, ReuseRole::kLeaf, 2), kOnce(kMarkFinish, ReuseRole::kLeaf, 0);

TEST(ReuseModel, KnowsNothingButThatRatesFallWithAge) {
  const ReuseModel model;
  for (uint64_t age = 1; age < 100000; age *= 2) {
    EXPECT_LT(model.Rate(kChat, age), model.Rate(kChat, age - 1));
    EXPECT_EQ(model.Rate(kChat, age), model.Rate(kOnce, age));
  }
}

TEST(ReuseModel, LearnsTheRateOfAClassAndAnAge) {
  ReuseModel model;
  // Each request restores one of the chat's checkpoints with chance 1 / 8; once-used ones never.
  std::mt19937 rng(1);
  for (int i = 0; i < 2000; ++i) {
    uint64_t age = 0;
    while (rng() % 8 != 0) ++age;
    model.Record(kChat, 0, age, true);
    model.Record(kOnce, 0, 40, false);
    model.Refresh();
  }
  EXPECT_NEAR(model.Rate(kChat, 3), 1.0 / 8, 0.08);
  EXPECT_LT(model.Rate(kOnce, 3), model.Rate(kChat, 3) / 50);
}

TEST(ReuseModel, ForgetsWhatIsNoLongerTrue) {
  ReuseModel model;
  for (int i = 0; i < 3000; ++i) {
    model.Record(kChat, 0, 2, true);
    model.Refresh();
  }
  const double before = model.Rate(kChat, 2);
  for (int i = 0; i < 20000; ++i) {
    model.Record(kChat, 0, 60, false);
    model.Record(kOnce, 0, 2, true);
    model.Refresh();
  }
  EXPECT_LT(model.Rate(kChat, 2), before / 4);
}

TEST(ReuseClass, TheLikeliestKindCounts) {
  EXPECT_EQ(ReuseClass(kMarkGrid | kMarkEnd, ReuseRole::kLeaf, 0),
            ReuseClass(kMarkEnd, ReuseRole::kLeaf, 0));
  EXPECT_EQ(ReuseClass(kMarkTurn, ReuseRole::kInner, 2),
            ReuseClass(kMarkTurn, ReuseRole::kInner, 3));
  EXPECT_FALSE(ReuseClass(kMarkTurn, ReuseRole::kInner, 1) ==
               ReuseClass(kMarkTurn, ReuseRole::kInner, 2));
  EXPECT_EQ(ReuseClass(kMarkTurn, ReuseRole::kBranch, 9).role(), ReuseRole::kBranch);
}

// In a bucket saved / bytes differ by less than sqrt(2) and the oldest has the lowest rate, so what
// is chosen is worth less than sqrt(2) times the least.
TEST(ValueQueue, TheLeastOfManyWithoutLookingAtAll) {
  const ReuseModel model;
  ValueQueue queue;
  std::mt19937 rng(7);
  std::map<uint64_t, std::pair<ValueItem, ValueQueue::Key>> items;
  const ReuseClass classes[] = {kChat, kOnce, ReuseClass(kMarkGrid, ReuseRole::kInner, 0)};
  for (uint64_t id = 1; id < 4000; ++id) {
    const ValueItem item{.id = id,
                         .reuse_class = classes[rng() % 3],
                         .last_request = rng() % 1000,
                         .saved = 1.0 + rng() % 5000,
                         .bytes = 1 + rng() % 1000,
                         .is_leaf = rng() % 2 == 0};
    items[id] = {item, queue.Insert(item)};
    if (rng() % 3 == 0) {
      const auto old = items.begin();
      queue.Erase(old->second.second);
      items.erase(old);
    }
    if (id % 50 != 0) continue;
    ASSERT_EQ(queue.size(), items.size());
    double least = 1e300;
    for (const auto& [other, entry] : items) {
      least = std::min(least, ValueQueue::Value(model, 1000, entry.first));
    }
    const auto victim = queue.Least(model, 1000, false);
    ASSERT_TRUE(victim.has_value());
    EXPECT_GE(victim->value, least);
    EXPECT_LE(victim->value, least * std::sqrt(2.0) * (1 + 1e-9));
  }
  EXPECT_LT(queue.bucket_count(), 200u);
}

}  // namespace
}  // namespace cairn
