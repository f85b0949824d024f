#include "engine/cost_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace cairn {
namespace {

constexpr StepTarget kDouble = {2, 0};

// A machine: 40 ms a step, 2 ms a row, 0.1 ms a row for each 1,000 tokens of depth; some noise, and
// one step in fifty takes far too long.
struct Machine {
  double row_ms = 2;
  std::mt19937 random{1};
  double Ms(StepShape s) {
    const double noise = std::uniform_real_distribution<double>(0.95, 1.05)(random);
    const double hiccup = random() % 50 == 0 ? 5 : 1;
    return hiccup * noise * (40 + row_ms * s.rows + 0.0001 * s.depth_sum);
  }
};

TEST(CostModel, TheFirstPieceIsCareful) {
  CostModel model;
  EXPECT_EQ(model.RowsWithin({{8, 0}, {8, 0}}, 0, kDouble, 512), 16);
  EXPECT_EQ(model.RowsWithin({{8, 0}, {8, 0}}, 0, kDouble, 4), 4);
  for (int i = 0; i < 10; ++i) model.Observe(CostModel::Kind::kDecode, {8, 0}, 56);
  EXPECT_EQ(model.RowsWithin({{8, 0}, {8, 0}}, 0, kDouble, 512), 16);
}

// A step in which the machine slept says next to nothing.
TEST(CostModel, AStepOfHoursChangesNothing) {
  CostModel model;
  for (int i = 0; i < 20; ++i) {
    model.Observe(CostModel::Kind::kDecode, {8, 0}, 40 + 8 * 2);
    model.Observe(CostModel::Kind::kPrefill, {20, 0}, 40 + 20 * 2);
  }
  const int rows = model.RowsWithin({{8, 0}, {8, 0}}, 0, kDouble, 504);
  for (const double ms : {1e4, 1e7, 1e12}) {
    model.Observe(CostModel::Kind::kDecode, {8, 0}, ms);
    model.Observe(CostModel::Kind::kPrefill, {20, 0}, ms);
    EXPECT_NEAR(model.RowsWithin({{8, 0}, {8, 0}}, 0, kDouble, 504), rows, 2);
  }
}

TEST(CostModel, PiecesFitTheTargetWhileAPromptGrows) {
  CostModel model;
  Machine machine;
  const StepShape decode{8, 8 * 500.0};
  for (int i = 0; i < 100; ++i) model.Observe(CostModel::Kind::kDecode, decode, machine.Ms(decode));
  const double quiet = 40 + 2 * 8 + 0.0001 * decode.depth_sum;
  EXPECT_NEAR(model.Predict(decode), quiet, 0.1 * quiet);
  int64_t depth = 0, late = 0, steps = 0;
  double busy = 0;
  while (depth < 30000) {
    const int rows = model.RowsWithin({decode, decode}, static_cast<double>(depth), {1.6, 0}, 504);
    const StepShape shape = decode + StepShape{rows, rows * static_cast<double>(depth)};
    const double ms = machine.Ms(shape);
    model.Observe(CostModel::Kind::kPrefill, shape, ms);
    late += 40 + 2 * shape.rows + 0.0001 * shape.depth_sum > 2 * quiet;
    busy += 40 + 2 * shape.rows + 0.0001 * shape.depth_sum;
    depth += rows;
    ++steps;
  }
  EXPECT_LE(late, steps / 100);
  EXPECT_GT(busy / static_cast<double>(steps), 1.4 * quiet);  // and the room is used
}

// A machine like the one of docs/load.md: 8 streams take 38 ms, a prompt's row 2.6 ms at the
// beginning and 10 at a depth of 28,000, where only two fit into a step. The streams grow from 400
// tokens to 4,000 beside it, again and again.
TEST(CostModel, AStepWithAPromptTakesItsTarget) {
  for (unsigned seed = 1; seed <= 8; ++seed) {
    std::mt19937 random(seed);
    std::normal_distribution<double> normal(0, 1);
    double drift = 0;
    auto truth = [](double streams_depth, int rows, double depth) {
      const double prompt = rows > 0 ? 1.5 + rows * (2.6 + 0.00027 * depth) : 0;
      return 13 + 8 * (3.05 + 0.0004 * streams_depth) + prompt;
    };
    auto measured = [&](double ms) {
      drift = 0.95 * drift + 0.009 * normal(random);
      return ms * std::exp(0.03 * normal(random) + drift) * (random() % 100 == 0 ? 1.25 : 1);
    };
    CostModel model;
    const double quiet = 400;
    for (int i = 0; i < 300; ++i)
      model.Observe(CostModel::Kind::kDecode, {8, 8 * (100.0 + i)},
                    measured(truth(100.0 + i, 0, 0)));
    const double target = 1.6 * truth(quiet, 0, 0);
    double streams = quiet, busy = 0;
    int64_t depth = 0, steps = 0, late = 0;
    for (; depth < 30000; ++steps) {
      const auto d = static_cast<double>(depth);
      const int rows = model.RowsWithin({{8, 8 * streams}, {8, 8 * quiet}}, d, {1.6, 20, 1.2}, 504);
      const double ms = measured(truth(streams, rows, d));
      model.Observe(CostModel::Kind::kPrefill, {8 + rows, 8 * streams + rows * (d + rows / 2.0)},
                    ms);
      busy += ms;
      late += ms > 2 * truth(quiet, 0, 0);
      depth += rows;
      streams = streams < 4000 ? streams + 1 : 100;
    }
    const double mean = busy / static_cast<double>(steps);
    EXPECT_NEAR(mean, target, 0.04 * target) << "seed " << seed;
    EXPECT_LE(late, steps / 50) << "seed " << seed;
  }
}

// 8 streams of 500 tokens, then of 20,000: their own step goes from 56 ms to 72.
TEST(CostModel, StreamsThatGrowKeepThePaceTheyHadBefore) {
  CostModel model;
  Machine machine;
  const StepShape before{8, 8 * 500.0}, grown{8, 8 * 20000.0};
  for (int i = 0; i < 100; ++i) {
    model.Observe(CostModel::Kind::kDecode, i % 2 ? before : grown,
                  machine.Ms(i % 2 ? before : grown));
    model.Observe(CostModel::Kind::kPrefill, {100, 0}, machine.Ms({100, 0}));
  }
  const double row = model.row_ms_at(0), now = model.Predict(grown), then = model.Predict(before);
  ASSERT_GT(now, 1.15 * then);
  const StepTarget target = {.factor = 1.7, .floor_ms = 20, .least = 1.2};
  EXPECT_NEAR(model.RowsWithin({grown, before}, 0, target, 504), (1.7 * then - now) / row, 1);
  EXPECT_NEAR(model.RowsWithin({before, before}, 0, target, 504), 0.7 * then / row, 1);
  // Shallower ones than before do not get slower than 1.7 times their own pace.
  EXPECT_NEAR(model.RowsWithin({before, grown}, 0, target, 504), 0.7 * then / row, 1);
  // However deep they are, the prompt goes on.
  const StepShape deep{8, 8 * 80000.0};
  EXPECT_NEAR(model.RowsWithin({deep, before}, 0, target, 504), 0.2 * model.Predict(deep) / row, 1);
}

TEST(CostModel, AQuietHourForgetsNothing) {
  CostModel model;
  Machine machine;
  for (int i = 0; i < 40; ++i)
    model.Observe(CostModel::Kind::kPrefill, {512, 0}, machine.Ms({512, 0}));
  for (int i = 0; i < 100000; ++i)
    model.Observe(CostModel::Kind::kDecode, {1, 0}, machine.Ms({1, 0}));
  EXPECT_NEAR(model.row_ms_at(0), 2, 0.5);
}

TEST(CostModel, ASlowerMachineMakesSmallerPieces) {
  CostModel model;
  Machine machine;
  auto run = [&] {
    for (int i = 0; i < 60; ++i) {
      const int rows = model.RowsWithin({{8, 0}, {8, 0}}, 0, kDouble, 504);
      model.Observe(CostModel::Kind::kPrefill, {8 + rows, 0}, machine.Ms({8 + rows, 0}));
      model.Observe(CostModel::Kind::kDecode, {8, 0}, machine.Ms({8, 0}));
    }
    return model.RowsWithin({{8, 0}, {8, 0}}, 0, kDouble, 504);
  };
  const int fast = run();
  EXPECT_NEAR(fast, 28, 8);
  machine.row_ms = 8;
  const int slow = run();
  EXPECT_NEAR(slow, 13, 5);
}

TEST(CostModel, AFixedTargetAndNoTarget) {
  CostModel model;
  for (int i = 0; i < 20; ++i) {
    model.Observe(CostModel::Kind::kDecode, {8, 0}, 40 + 8 * 2);
    model.Observe(CostModel::Kind::kPrefill, {100, 0}, 40 + 100 * 2);
  }
  EXPECT_NEAR(model.RowsWithin({{8, 0}, {8, 0}}, 0, {0, 156}, 504), 50, 2);
  EXPECT_EQ(model.RowsWithin({{8, 0}, {8, 0}}, 0, {0, 10}, 504),
            1);  // already too late: but it goes on
  EXPECT_EQ(
      model.RowsWithin({{8, 0}, {8, 0}}, 0, {0, std::numeric_limits<double>::infinity()}, 504),
      504);
}

}  // namespace
}  // namespace cairn
