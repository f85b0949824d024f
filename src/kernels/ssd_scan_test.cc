// The selective scan of Mamba2 against its definition: in bits on every level, for every chunking,
// thread count and tap; and against the recurrence of the paper in double.
#include "kernels/ssd_scan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/vector_ops.h"

namespace cairn {
namespace {

using Floats = std::vector<float>;

bool SameBits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

int Pick(std::mt19937& random, int low, int high) {
  return std::uniform_int_distribution<int>(low, high)(random);
}

Floats Random(std::mt19937& random, size_t count, float scale) {
  std::normal_distribution<float> normal(0.0f, scale);
  Floats f(count);
  for (float& v : f) v = normal(random);
  return f;
}

// A layer with fixed inputs for `rows` rows.
class Scan {
 public:
  Scan(std::mt19937& random, const SsdShape& shape, int rows) : shape_(shape), rows_(rows) {
    ld_ = shape.inner() + 2 * shape.group_states() + Pick(random, 0, 5);
    ldout_ = shape.inner() + Pick(random, 0, 5);
    const size_t n = static_cast<size_t>(rows);
    ubc_ = Random(random, n * ld_, 1.0f);
    ldraw_ = shape.heads + Pick(random, 0, 4);
    raw_ = Random(random, n * ldraw_, 1.0f);
    dt_bias_ = Random(random, shape.heads, 1.0f);
    a_neg_ = Random(random, shape.heads, 0.5f);
    for (float& a : a_neg_) a = -std::abs(a) - 0.01f;
    d_ = Random(random, shape.heads, 1.0f);
    dt_.resize(n * shape.heads);
    decay_ = dt_;
    for (size_t i = 0; i < dt_.size(); ++i) {
      const size_t r = i / shape.heads, h = i % shape.heads;
      dt_[i] = SoftplusF(raw_[r * ldraw_ + h] + dt_bias_[h]);
      decay_[i] = ExpF(a_neg_[h] * dt_[i]);
    }
  }

  int rows() const { return rows_; }
  size_t out_floats() const { return static_cast<size_t>(rows_) * ldout_; }
  size_t state_floats() const { return shape_.state_floats(); }

  // The real thing, gates included.
  void Run(const KernelContext& ctx, std::span<const RecurrentSlice> slices, float* out) const {
    Floats dt(dt_.size()), decay(dt_.size());
    SsdGates(ctx, raw_.data(), ldraw_, dt_bias_.data(), a_neg_.data(), rows_, shape_.heads,
             dt.data(), decay.data());
    SsdScan(ctx, shape_, slices, ubc_.data(), b(0), c(0), ld_, dt.data(), decay.data(), d_.data(),
            out, ldout_);
  }
  // The definition of ssd_scan.h, one value at a time.
  void Define(Floats& state, Floats& out) const {
    ForChannels([&](int t, int h, int group, int p, size_t at) {
      const float u = ubc_[static_cast<size_t>(t * ld_ + h * shape_.head_dim + p)];
      const float x = dt(t, h) * u;
      float y = 0;
      for (int n = 0; n < shape_.state_dim; ++n) {
        float& m = state[at + static_cast<size_t>(n) * shape_.head_dim];
        m = std::fma(x, b(t)[group * shape_.state_dim + n], decay(t, h) * m);
        y = std::fma(c(t)[group * shape_.state_dim + n], m, y);
      }
      out[Out(t, h, p)] = std::fma(d_[h], u, y);
    });
  }
  // The paper's recurrence in double.
  void Exact(std::vector<double>& state, std::vector<double>& out) const {
    ForChannels([&](int t, int h, int group, int p, size_t at) {
      const double u = ubc_[static_cast<size_t>(t * ld_ + h * shape_.head_dim + p)];
      const double raw = double{raw_[static_cast<size_t>(t * ldraw_ + h)]} + dt_bias_[h];
      const double step = std::max(raw, 0.0) + std::log1p(std::exp(-std::abs(raw)));
      double y = d_[h] * u;
      for (int n = 0; n < shape_.state_dim; ++n) {
        double& m = state[at + static_cast<size_t>(n) * shape_.head_dim];
        m = std::exp(a_neg_[h] * step) * m + step * u * b(t)[group * shape_.state_dim + n];
        y += c(t)[group * shape_.state_dim + n] * m;
      }
      out[Out(t, h, p)] = y;
    });
  }

 private:
  template <typename Fn>
  void ForChannels(Fn fn) const {
    for (int t = 0; t < rows_; ++t)
      for (int h = 0; h < shape_.heads; ++h)
        for (int p = 0; p < shape_.head_dim; ++p)
          fn(t, h, h / (shape_.heads / shape_.groups), p,
             static_cast<size_t>(h) * shape_.state_dim * shape_.head_dim + p);
  }
  size_t Out(int t, int h, int p) const {
    return static_cast<size_t>(t * ldout_ + h * shape_.head_dim + p);
  }
  const float* b(int t) const { return ubc_.data() + t * ld_ + shape_.inner(); }
  const float* c(int t) const { return b(t) + shape_.group_states(); }
  float dt(int t, int h) const { return dt_[static_cast<size_t>(t * shape_.heads + h)]; }
  float decay(int t, int h) const { return decay_[static_cast<size_t>(t * shape_.heads + h)]; }

  const SsdShape shape_;
  const int rows_;
  int64_t ld_, ldout_, ldraw_;
  Floats ubc_, raw_, dt_bias_, a_neg_, d_, dt_, decay_;
};

SsdShape RandomShape(std::mt19937& random) {
  const int head_dims[] = {1, 8, 16, 20, 32, 48, 64, 80};
  const int state_dims[] = {1, 7, 16, 24, 64, 65, 128, 129, 256};
  const int groups = Pick(random, 1, 3);
  return {groups * Pick(random, 1, 5), head_dims[Pick(random, 0, 7)], groups,
          state_dims[Pick(random, 0, 8)]};
}

std::string Text(const SsdShape& s) {
  return std::to_string(s.heads) + " heads x " + std::to_string(s.head_dim) + ", " +
         std::to_string(s.groups) + " groups, " + std::to_string(s.state_dim) + " states";
}

// All rows in random chunks, each with random taps; every tap against a run that stops there.
void ExpectChunksAndTapsExact(std::mt19937& random, const Scan& scan, const KernelContext& ctx,
                              const Floats& start, const Floats& want_state,
                              const Floats& want_out) {
  Floats state = start, out(scan.out_floats());
  for (int row = 0; row < scan.rows();) {
    const int count = Pick(random, 0, 3) == 0 ? 1 : Pick(random, 1, scan.rows() - row);
    std::vector<int> tap_rows;
    for (int r = 0; r < count; ++r)
      for (int copies = Pick(random, -3, 2); copies > 0; --copies) tap_rows.push_back(r);
    std::vector<Floats> taken(tap_rows.size(), Floats(start.size()));
    std::vector<StateTap> taps;
    for (size_t i = 0; i < tap_rows.size(); ++i) taps.push_back({tap_rows[i], taken[i].data()});
    const Floats before = state;
    const RecurrentSlice slice = {row, count, state.data(), taps};
    scan.Run(ctx, {&slice, 1}, out.data());
    for (size_t i = 0; i < tap_rows.size(); ++i) {
      Floats stopped = before, ignored(out.size());
      const RecurrentSlice shorter = {row, tap_rows[i] + 1, stopped.data(), {}};
      scan.Run(ctx, {&shorter, 1}, ignored.data());
      ASSERT_TRUE(SameBits(taken[i], stopped)) << "tap after row " << tap_rows[i];
    }
    row += count;
  }
  EXPECT_TRUE(SameBits(state, want_state));
  EXPECT_TRUE(SameBits(out, want_out));
}

TEST(SsdScan, EveryLevelThreadCountChunkingAndTapIsExact) {
  std::mt19937 random(21);
  for (int round = 0; round < 60; ++round) {
    const SsdShape shape = RandomShape(random);
    const Scan scan(random, shape, Pick(random, 1, 24));
    SCOPED_TRACE(Text(shape));
    const Floats start = Random(random, scan.state_floats(), 0.5f);
    Floats want_state = start, want_out(scan.out_floats());
    scan.Define(want_state, want_out);
    for (CpuLevel level : SupportedCpuLevels()) {
      ThreadPool pool(Pick(random, 1, 4));
      const KernelContext ctx = {level, &pool};
      Floats state = start, out(scan.out_floats());
      const RecurrentSlice whole = {0, scan.rows(), state.data(), {}};
      scan.Run(ctx, {&whole, 1}, out.data());
      EXPECT_TRUE(SameBits(state, want_state)) << CpuLevelName(level);
      EXPECT_TRUE(SameBits(out, want_out)) << CpuLevelName(level);
      ExpectChunksAndTapsExact(random, scan, ctx, start, want_state, want_out);
    }
  }
}

// Rows of several sequences in one step give what each sequence gives alone.
TEST(SsdScan, SequencesOfAStepDoNotTouchEachOther) {
  std::mt19937 random(22);
  const int borders[][6] = {{0, 1, 9, 9, 22, 30}, {0, 1, 2, 3, 4, 5}};  // the second: decode only
  for (int round = 0; round < 12; ++round) {
    const SsdShape shape = RandomShape(random);
    SCOPED_TRACE(Text(shape));
    const int* begins = borders[round % 2];
    const Scan scan(random, shape, begins[5]);
    for (CpuLevel level : SupportedCpuLevels()) {
      ThreadPool pool(3);
      const KernelContext ctx = {level, &pool};
      std::vector<Floats> states, alone;
      std::vector<RecurrentSlice> slices;
      for (int s = 0; s < 5; ++s) states.push_back(Random(random, scan.state_floats(), 0.5f));
      alone = states;
      Floats out(scan.out_floats()), out_alone(scan.out_floats());
      for (size_t s = 0; s < 5; ++s) {
        const int count = begins[s + 1] - begins[s];
        slices.push_back({begins[s], count, states[s].data(), {}});
        const RecurrentSlice own = {begins[s], count, alone[s].data(), {}};
        scan.Run(ctx, {&own, 1}, out_alone.data());
      }
      scan.Run(ctx, slices, out.data());
      EXPECT_TRUE(SameBits(out, out_alone));
      for (size_t s = 0; s < 5; ++s) EXPECT_TRUE(SameBits(states[s], alone[s]));
    }
  }
}

// 40 steps of sums of 128 products, each rounded at |C M| of about 3: 128 x 3 x 2^-24 = 2e-5 for
// one row if all roundings fell one way, times the spread of a few standard deviations in C and M;
// 6e-5 was measured. The memory has a few roundings a step of values up to 20 (4e-6 measured).
TEST(SsdScan, FollowsTheRecurrenceOfThePaper) {
  std::mt19937 random(23);
  const SsdShape shape = {6, 32, 2, 128};
  const Scan scan(random, shape, 40);
  const Floats start = Random(random, scan.state_floats(), 0.1f);
  std::vector<double> exact_state(start.begin(), start.end()), exact_out(scan.out_floats());
  scan.Exact(exact_state, exact_out);
  ThreadPool pool(2);
  Floats state = start, out(scan.out_floats());
  const RecurrentSlice slice = {0, 40, state.data(), {}};
  scan.Run({DetectCpuLevel(), &pool}, {&slice, 1}, out.data());
  double worst_out = 0, worst_state = 0;
  for (size_t i = 0; i < out.size(); ++i)
    worst_out = std::max(worst_out, std::abs(out[i] - exact_out[i]));
  for (size_t i = 0; i < state.size(); ++i)
    worst_state = std::max(worst_state, std::abs(state[i] - exact_state[i]));
  std::printf("worst out %.1e, state %.1e\n", worst_out, worst_state);
  EXPECT_LE(worst_out, 2e-4);
  EXPECT_LE(worst_state, 2e-5);
}

TEST(SsdGates, StepsStayWithinLimitsOnEveryLevel) {
  std::mt19937 random(29);
  constexpr int kRows = 9, kHeads = 37;
  const Floats bias = Random(random, kHeads, 1.0f), a_neg = Random(random, kHeads, 0.5f);
  Floats raw = Random(random, size_t{kRows} * kHeads, 3.0f);
  raw[5] = std::numeric_limits<float>::quiet_NaN();
  const SsdStepLimits limits = {0.25f, 0.75f};
  ThreadPool pool(2);
  for (const CpuLevel level : SupportedCpuLevels()) {
    Floats dt(raw.size()), decay(raw.size()), free_dt(raw.size()), free_decay(raw.size());
    SsdGates({level, &pool}, raw.data(), kHeads, bias.data(), a_neg.data(), kRows, kHeads,
             dt.data(), decay.data(), limits);
    SsdGates({level, &pool}, raw.data(), kHeads, bias.data(), a_neg.data(), kRows, kHeads,
             free_dt.data(), free_decay.data());
    for (size_t i = 0; i < raw.size(); ++i) {
      const int h = static_cast<int>(i % kHeads);
      const float step = SoftplusF(raw[i] + bias[h]);
      if (i == 5) {
        EXPECT_TRUE(std::isnan(dt[i]) && std::isnan(free_dt[i]));
        continue;
      }
      EXPECT_EQ(free_dt[i], step);
      EXPECT_EQ(dt[i], std::clamp(step, limits.min, limits.max));
      EXPECT_EQ(decay[i], ExpF(a_neg[h] * dt[i]));
    }
  }
}

}  // namespace
}  // namespace cairn
