#include "engine/cost_model.h"

#include <gtest/gtest.h>

#include <algorithm>
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
    model.Observe(CostModel::Kind::kPrefill, {20, 0}, 40 + 20 * 2, 12);
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
    model.Observe(CostModel::Kind::kPrefill, shape, ms, rows);
    late += 40 + 2 * shape.rows + 0.0001 * shape.depth_sum > 2 * quiet;
    busy += 40 + 2 * shape.rows + 0.0001 * shape.depth_sum;
    depth += rows;
    ++steps;
  }
  EXPECT_LE(late, steps / 100);
  EXPECT_GT(busy / static_cast<double>(steps), 1.4 * quiet);  // and the room is used
}

// A server like the one of docs/load.md: 8 streams take 38 ms, a prompt's row 2.6 ms at the
// beginning and 10 at a depth of 28,000, where only two fit into a step. Streams grow from 400
// tokens to 4,000, again and again.
class Serving {
 public:
  explicit Serving(unsigned seed) : random_(seed) {}
  double slow = 1;

  static double QuietMs(double streams_depth) { return 13 + 8 * (3.05 + 0.0004 * streams_depth); }
  void Decode(int steps) {
    for (int i = 0; i < steps; ++i, Grow())
      model_.Observe(CostModel::Kind::kDecode, Streams(), Measured(QuietMs(depth_)));
    quiet_ = depth_;
  }
  struct Summary {
    double mean_ms = 0, max_ms = 0;
    int64_t steps = 0, over_double = 0;
  };
  // A prompt of which [begin, end) is computed beside the streams.
  Summary Prompt(int64_t begin, int64_t end, const StepTarget& target) {
    Summary out;
    const double over = 2 * slow * QuietMs(quiet_);
    for (int64_t at = begin; at < end; ++out.steps, Grow()) {
      const auto d = static_cast<double>(at);
      const int rows = model_.RowsWithin({Streams(), {8, 8 * quiet_}}, d, target, 504);
      const double ms = Measured(QuietMs(depth_) + 1.5 + rows * (2.6 + 0.00027 * d));
      model_.Observe(CostModel::Kind::kPrefill,
                     Streams() + StepShape{rows, rows * (d + rows / 2.0)}, ms, rows);
      out.mean_ms += ms;
      out.max_ms = std::max(out.max_ms, ms);
      out.over_double += ms > over;
      at += rows;
    }
    out.mean_ms /= static_cast<double>(out.steps);
    return out;
  }
  double quiet_ms() const { return QuietMs(quiet_); }

 private:
  StepShape Streams() const { return {8, 8 * depth_}; }
  void Grow() { depth_ = depth_ < 4000 ? depth_ + 1 : 100; }
  double Measured(double ms) {
    drift_ = 0.95 * drift_ + 0.009 * normal_(random_);
    const double hiccup = random_() % 100 == 0 ? 1.25 : 1;
    return slow * ms * std::exp(0.03 * normal_(random_) + drift_) * hiccup;
  }

  CostModel model_;
  std::mt19937 random_;
  std::normal_distribution<double> normal_{0, 1};
  double drift_ = 0, depth_ = 100, quiet_ = 100;
};

constexpr StepTarget kServing = {.factor = 1.6, .floor_ms = 20, .least = 1.2};

TEST(CostModel, AStepWithAPromptTakesItsTarget) {
  for (unsigned seed = 1; seed <= 8; ++seed) {
    Serving s(seed);
    s.Decode(300);
    const double target = 1.6 * s.quiet_ms();
    const Serving::Summary got = s.Prompt(0, 30000, kServing);
    EXPECT_NEAR(got.mean_ms, target, 0.04 * target) << "seed " << seed;
    EXPECT_LE(got.over_double, got.steps / 50) << "seed " << seed;
  }
}

// Deep in a prompt rows and their depth cannot be told apart.
TEST(CostModel, APromptThatBeginsAfterADeepOneGetsNoFlood) {
  for (unsigned seed = 1; seed <= 8; ++seed) {
    for (const int64_t begin : {0, 29000}) {
      Serving s(seed);
      s.Decode(300);
      s.Prompt(begin, 30000, kServing);
      s.Decode(500);
      const Serving::Summary got = s.Prompt(0, 2000, kServing);
      EXPECT_LE(got.max_ms, 4 * s.quiet_ms()) << "seed " << seed << " begin " << begin;
      EXPECT_NEAR(got.mean_ms, 1.6 * s.quiet_ms(), 0.15 * s.quiet_ms()) << "seed " << seed;
    }
  }
}

// What is known of prompts is then older than what is known of streams.
TEST(CostModel, AMachineThatGotSlowerWhileNoPromptCameGetsNoFlood) {
  for (unsigned seed = 1; seed <= 8; ++seed) {
    for (const double slow : {1.4, 2.0}) {
      Serving s(seed);
      s.Decode(300);
      s.Prompt(0, 5000, kServing);
      s.slow = slow;
      s.Decode(600);
      const Serving::Summary got = s.Prompt(0, 5000, kServing);
      EXPECT_LE(got.max_ms, 4 * slow * s.quiet_ms()) << "seed " << seed;
      EXPECT_LE(got.over_double, got.steps / 20) << "seed " << seed;
    }
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
    model.Observe(CostModel::Kind::kPrefill, {100, 0}, machine.Ms({100, 0}), 92);
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
      model.Observe(CostModel::Kind::kPrefill, {8 + rows, 0}, machine.Ms({8 + rows, 0}), rows);
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

// However large the pieces of prompts that ran alone were, the first one beside streams is careful.
TEST(CostModel, APromptAloneSaysNothingOfPiecesBesideStreams) {
  CostModel model;
  for (int i = 0; i < 20; ++i) {
    model.Observe(CostModel::Kind::kPrefill, {512, 0}, 40 + 512 * 2);
    model.Observe(CostModel::Kind::kDecode, {8, 0}, 40 + 8 * 2);
  }
  EXPECT_EQ(model.RowsWithin({{8, 0}, {8, 0}}, 0, {0, 1000}, 504), 16);
}

TEST(CostModel, AFixedTargetAndNoTarget) {
  CostModel model;
  for (int i = 0; i < 20; ++i) {
    model.Observe(CostModel::Kind::kDecode, {8, 0}, 40 + 8 * 2);
    model.Observe(CostModel::Kind::kPrefill, {100, 0}, 40 + 100 * 2, 92);
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
