#include "cache/eviction.h"

#include <gtest/gtest.h>

#include <vector>

#include "cache/miss_reason.h"

namespace cairn {
namespace {

std::optional<int64_t> Victim(const std::vector<PathState>& path) {
  const auto pair = ChooseInnerState(path);
  if (!pair) return std::nullopt;
  return path[pair->deeper].position;
}

TEST(ChooseInnerState, TheDeeperOfTheClosestPairGoes) {
  EXPECT_EQ(Victim({{100, true}, {200, true}, {250, true}, {400, true}}), 250);
}

TEST(ChooseInnerState, TiesGoToTheShallowestPair) {
  EXPECT_EQ(Victim({{100, true}, {200, true}, {300, true}, {400, true}}), 200);
}

TEST(ChooseInnerState, FirstAndDeepestStay) {
  EXPECT_EQ(Victim({}), std::nullopt);
  EXPECT_EQ(Victim({{100, true}}), std::nullopt);
  EXPECT_EQ(Victim({{100, true}, {101, true}}), std::nullopt);
  // The closest pair is the last one, whose deeper state is the deepest: the next closest goes.
  EXPECT_EQ(Victim({{100, true}, {500, true}, {501, true}}), 500);
}

TEST(ChooseInnerState, ProtectedStatesStay) {
  EXPECT_EQ(Victim({{100, true}, {110, false}, {300, true}, {400, true}}), 300);
  EXPECT_EQ(Victim({{100, true}, {110, false}, {300, false}, {400, true}}), std::nullopt);
}

TEST(ChooseInnerState, RepeatedThinningSpreadsWhatStays) {
  std::vector<PathState> path;
  for (int64_t k = 1; k <= 64; ++k) {
    path.push_back({k * 64, true});
    while (path.size() > 5) path.erase(path.begin() + ChooseInnerState(path)->deeper);
  }
  EXPECT_EQ(path.front().position, 64);
  EXPECT_EQ(path.back().position, 64 * 64);
  for (size_t i = 1; i < path.size(); ++i) {
    EXPECT_LE(path[i].position - path[i - 1].position, 64 * 64 / 2 + 64);
  }
}

TEST(ChooseQueue, LruTakesTheOldestOfAll) {
  EXPECT_EQ(ChooseQueue({}, CachePolicy::kLru), std::nullopt);
  EXPECT_EQ(ChooseQueue({{{3, 7}, {1, 5}, {9, 6}}}, CachePolicy::kLru), PathType::kUser);
  EXPECT_EQ(ChooseQueue({{{0, 0}, {0, 0}, {1, 6}}}, CachePolicy::kLru), PathType::kSystem);
}

TEST(ChooseQueue, LruTypeTakesTheFirstTypeThatIsNotShorterThanTheNext) {
  const auto choose = [](size_t assistant, size_t user, size_t system) {
    return ChooseQueue({{{assistant, 3}, {user, 2}, {system, 1}}}, CachePolicy::kLruType);
  };
  EXPECT_EQ(choose(0, 0, 0), std::nullopt);
  EXPECT_EQ(choose(2, 2, 5), PathType::kAssistant);
  EXPECT_EQ(choose(1, 2, 2), PathType::kUser);
  EXPECT_EQ(choose(1, 2, 3), PathType::kSystem);
  EXPECT_EQ(choose(0, 1, 1), PathType::kUser);
  EXPECT_EQ(choose(0, 0, 1), PathType::kSystem);
  EXPECT_EQ(choose(1, 0, 0), PathType::kAssistant);
  EXPECT_EQ(choose(1, 2, 0), PathType::kUser);
  EXPECT_EQ(choose(1, 0, 9), PathType::kAssistant);
}

TEST(MissReasonName, AsClientsSeeThem) {
  EXPECT_STREQ(MissReasonName(MissReason::kDisabledByRequest), "disabled_by_request");
  EXPECT_STREQ(MissReasonName(MissReason::kNoCheckpointBeforeDivergence),
               "no_checkpoint_before_divergence");
  EXPECT_STREQ(MissReasonName(MissReason::kBetweenCheckpoints), "between_checkpoints");
}

TEST(PathTypeAt, ByTheParts) {
  EXPECT_EQ(PathTypeAt(100, 100, 180, false), PathType::kSystem);
  EXPECT_EQ(PathTypeAt(101, 100, 180, false), PathType::kUser);
  EXPECT_EQ(PathTypeAt(180, 100, 180, false), PathType::kUser);
  EXPECT_EQ(PathTypeAt(181, 100, 180, false), PathType::kAssistant);
  EXPECT_EQ(PathTypeAt(50, 0, 180, true), PathType::kAssistant);
}

}  // namespace
}  // namespace cairn
