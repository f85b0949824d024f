// The kernels that carry a state: Gated DeltaNet and the causal convolution. Both are checked
// against a plain definition, in bits on every level, for every chunking, thread count and tap.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "kernels/conv1d.h"
#include "kernels/gated_delta.h"
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

// A recurrent layer under test: its inputs for `rows` rows are fixed; run() computes some slices.
class Layer {
 public:
  virtual ~Layer() = default;
  virtual size_t state_floats() const = 0;
  virtual size_t out_floats() const = 0;
  virtual void Run(const KernelContext& ctx, std::span<const RecurrentSlice> slices,
                   float* out) const = 0;
  // The definition, one value at a time, rows [0, rows) from `state`.
  virtual void Define(Floats& state, Floats& out) const = 0;
  int rows() const { return rows_; }

 protected:
  int rows_ = 0;
};

class DeltaLayer : public Layer {
 public:
  DeltaLayer(std::mt19937& random, GatedDeltaShape shape, int rows) : shape_(shape) {
    rows_ = rows;
    const int qk = shape.key_heads * shape.key_dim;
    ld_ = 2 * qk + shape.value_heads * shape.value_dim + Pick(random, 0, 3);
    ldout_ = shape.value_heads * shape.value_dim + Pick(random, 0, 3);
    const size_t n = static_cast<size_t>(rows);
    qkv_ = Random(random, n * ld_, 1.0f / std::sqrt(static_cast<float>(shape.key_dim)));
    g_ = Random(random, n * shape.decays(), 1.0f);
    beta_ = Random(random, n * shape.value_heads, 1.0f);
    for (float& g : g_) g = ExpF(-0.1f * std::abs(g));
    for (float& b : beta_) b = SigmoidF(b);
  }
  size_t state_floats() const override { return shape_.state_floats(); }
  size_t out_floats() const override { return static_cast<size_t>(rows_) * ldout_; }
  void Run(const KernelContext& ctx, std::span<const RecurrentSlice> slices,
           float* out) const override {
    GatedDelta(ctx, shape_, slices, q(), k(), ld_, v(), ld_, g_.data(), beta_.data(), out, ldout_);
  }
  void Define(Floats& state, Floats& out) const override {
    const int dk = shape_.key_dim, dv = shape_.value_dim;
    for (int t = 0; t < rows_; ++t) {
      for (int h = 0; h < shape_.value_heads; ++h) {
        const int key_head = shape_.map == DeltaHeadMap::kTiled
                                 ? h % shape_.key_heads
                                 : h / (shape_.value_heads / shape_.key_heads);
        const float* qt = q() + t * ld_ + key_head * dk;
        const float* kt = k() + t * ld_ + key_head * dk;
        float lanes[16] = {};
        for (int i = 0; i < dk; ++i) lanes[i % 16] = std::fma(qt[i], kt[i], lanes[i % 16]);
        for (int fold = 8; fold > 0; fold /= 2)
          for (int j = 0; j < fold; ++j) lanes[j] += lanes[j + fold];
        const float beta = beta_[static_cast<size_t>(t * shape_.value_heads + h)];
        for (int c = 0; c < dv; ++c) {
          float* s = state.data() + static_cast<size_t>(h) * dk * dv + c;
          float a = 0, b = 0;
          for (int i = 0; i < dk; ++i) {
            s[i * dv] = Decay(t, h, i) * s[i * dv];
            a = std::fma(kt[i], s[i * dv], a);
            b = std::fma(qt[i], s[i * dv], b);
          }
          const float delta = beta * (v()[t * ld_ + h * dv + c] - a);
          out[static_cast<size_t>(t * ldout_ + h * dv + c)] = std::fma(lanes[0], delta, b);
          for (int i = 0; i < dk; ++i) s[i * dv] = std::fma(kt[i], delta, s[i * dv]);
        }
      }
    }
  }
  // The recurrence of the paper in double: S = g S, delta = beta (v - k S), S += k delta, out = q
  // S.
  void Exact(std::vector<double>& state, std::vector<double>& out) const {
    const int dk = shape_.key_dim, dv = shape_.value_dim;
    for (int t = 0; t < rows_; ++t) {
      for (int h = 0; h < shape_.value_heads; ++h) {
        const int key_head = DeltaKeyHead(shape_, h);
        const float* qt = q() + t * ld_ + key_head * dk;
        const float* kt = k() + t * ld_ + key_head * dk;
        for (int c = 0; c < dv; ++c) {
          double* s = state.data() + static_cast<size_t>(h) * dk * dv + c;
          double a = 0, y = 0;
          for (int i = 0; i < dk; ++i) {
            s[i * dv] *= Decay(t, h, i);
            a += kt[i] * s[i * dv];
          }
          const double delta = beta_[static_cast<size_t>(t * shape_.value_heads + h)] *
                               (v()[t * ld_ + h * dv + c] - a);
          for (int i = 0; i < dk; ++i) {
            s[i * dv] += kt[i] * delta;
            y += qt[i] * s[i * dv];
          }
          out[static_cast<size_t>(t * ldout_ + h * dv + c)] = y;
        }
      }
    }
  }

 private:
  const float* q() const { return qkv_.data(); }
  const float* k() const { return q() + shape_.key_heads * shape_.key_dim; }
  const float* v() const { return k() + shape_.key_heads * shape_.key_dim; }
  float Decay(int t, int h, int i) const {
    const int of_head = shape_.decay == DeltaDecay::kPerHead ? h : h * shape_.key_dim + i;
    return g_[static_cast<size_t>(t * shape_.decays() + of_head)];
  }

  GatedDeltaShape shape_;
  int ld_, ldout_;
  Floats qkv_, g_, beta_;
};

class ConvLayer : public Layer {
 public:
  ConvLayer(std::mt19937& random, Conv1dShape shape, bool bias, int rows) : shape_(shape) {
    rows_ = rows;
    ld_ = shape.channels + Pick(random, 0, 5);
    u_ = Random(random, static_cast<size_t>(rows) * ld_, 1.0f);
    w_ = Random(random, static_cast<size_t>(shape.kernel) * shape.channels, 1.0f);
    if (bias) bias_ = Random(random, static_cast<size_t>(shape.channels), 1.0f);
  }
  size_t state_floats() const override { return shape_.state_floats(); }
  size_t out_floats() const override { return static_cast<size_t>(rows_) * ld_; }
  void Run(const KernelContext& ctx, std::span<const RecurrentSlice> slices,
           float* out) const override {
    Conv1d(ctx, shape_, slices, u_.data(), ld_, w_, bias_, out, ld_);
  }
  void Define(Floats& state, Floats& out) const override {
    const int past = shape_.kernel - 1, channels = shape_.channels;
    for (int t = 0; t < rows_; ++t) {
      for (int c = 0; c < channels; ++c) {
        float sum = bias_.empty() ? 0.0f : bias_[static_cast<size_t>(c)];
        for (int j = 0; j < past; ++j) {
          sum = std::fma(w_[static_cast<size_t>(j * channels + c)],
                         state[static_cast<size_t>(j * channels + c)], sum);
        }
        const float now = u_[static_cast<size_t>(t * ld_ + c)];
        sum = std::fma(w_[static_cast<size_t>(past * channels + c)], now, sum);
        out[static_cast<size_t>(t * ld_ + c)] =
            shape_.activation == ConvActivation::kSilu ? SiluF(sum) : sum;
        for (int j = 0; j + 1 < past; ++j) {
          state[static_cast<size_t>(j * channels + c)] =
              state[static_cast<size_t>((j + 1) * channels + c)];
        }
        state[static_cast<size_t>((past - 1) * channels + c)] = now;
      }
    }
  }

 private:
  Conv1dShape shape_;
  int ld_;
  Floats u_, w_, bias_;
};

GatedDeltaShape RandomDeltaShape(std::mt19937& random) {
  const int key_heads = Pick(random, 1, 2);
  const int dims[] = {4, 12, 16, 20, 32, 64, 128};
  return {key_heads,
          key_heads * Pick(random, 1, 3),
          dims[Pick(random, 0, 6)],
          16 * Pick(random, 1, 9),
          Pick(random, 0, 1) == 0 ? DeltaHeadMap::kTiled : DeltaHeadMap::kGrouped,
          Pick(random, 0, 1) == 0 ? DeltaDecay::kPerHead : DeltaDecay::kPerKeyChannel};
}

std::vector<std::unique_ptr<Layer>> RandomLayers(std::mt19937& random, int count) {
  std::vector<std::unique_ptr<Layer>> layers;
  for (int i = 0; i < count; ++i) {
    layers.push_back(
        std::make_unique<DeltaLayer>(random, RandomDeltaShape(random), Pick(random, 1, 24)));
    const Conv1dShape conv = {
        Pick(random, 0, 3) == 0 ? Pick(random, 500, 1100) : Pick(random, 1, 90), Pick(random, 2, 8),
        Pick(random, 0, 1) == 0 ? ConvActivation::kNone : ConvActivation::kSilu};
    layers.push_back(
        std::make_unique<ConvLayer>(random, conv, Pick(random, 0, 1) == 0, Pick(random, 1, 24)));
  }
  return layers;
}

// Runs all rows in random chunks, each with random taps, and checks every tap against a run that
// stops there.
void ExpectChunksAndTapsExact(std::mt19937& random, const Layer& layer, const KernelContext& ctx,
                              const Floats& start, const Floats& want_state,
                              const Floats& want_out) {
  Floats state = start, out = want_out;
  std::fill(out.begin(), out.end(), 0.0f);
  for (int row = 0; row < layer.rows();) {
    const int count = Pick(random, 1, layer.rows() - row);
    std::vector<int> tap_rows;
    for (int r = 0; r < count; ++r)
      for (int copies = Pick(random, -3, 2); copies > 0; --copies) tap_rows.push_back(r);
    std::vector<Floats> taken(tap_rows.size(), Floats(start.size()));
    std::vector<StateTap> taps;
    for (size_t i = 0; i < tap_rows.size(); ++i) taps.push_back({tap_rows[i], taken[i].data()});
    const Floats before = state;
    const RecurrentSlice slice = {row, count, state.data(), taps};
    layer.Run(ctx, {&slice, 1}, out.data());
    for (size_t i = 0; i < tap_rows.size(); ++i) {
      Floats stopped = before, ignored(out.size());
      const RecurrentSlice shorter = {row, tap_rows[i] + 1, stopped.data(), {}};
      layer.Run(ctx, {&shorter, 1}, ignored.data());
      ASSERT_TRUE(SameBits(taken[i], stopped)) << "tap after row " << tap_rows[i];
    }
    row += count;
  }
  EXPECT_TRUE(SameBits(state, want_state));
  EXPECT_TRUE(SameBits(out, want_out));
}

TEST(RecurrentKernels, EveryLevelThreadCountChunkingAndTapIsExact) {
  std::mt19937 random(11);
  for (const auto& layer : RandomLayers(random, 60)) {
    const Floats start = Random(random, layer->state_floats(), 0.5f);
    Floats want_state = start, want_out(layer->out_floats());
    layer->Define(want_state, want_out);
    for (CpuLevel level : SupportedCpuLevels()) {
      ThreadPool pool(Pick(random, 1, 4));
      const KernelContext ctx = {level, &pool};
      Floats state = start, out(layer->out_floats());
      const RecurrentSlice whole = {0, layer->rows(), state.data(), {}};
      layer->Run(ctx, {&whole, 1}, out.data());
      EXPECT_TRUE(SameBits(state, want_state)) << CpuLevelName(level);
      EXPECT_TRUE(SameBits(out, want_out)) << CpuLevelName(level);
      ExpectChunksAndTapsExact(random, *layer, ctx, start, want_state, want_out);
    }
  }
}

// Rows of several sequences in one step give what each sequence gives alone.
TEST(RecurrentKernels, SequencesOfAStepDoNotTouchEachOther) {
  std::mt19937 random(12);
  for (int round = 0; round < 6; ++round) {
    const Conv1dShape conv = {700, 4, ConvActivation::kSilu};
    const DeltaLayer delta(random, RandomDeltaShape(random), 30);
    const ConvLayer convolution(random, conv, false, 30);
    for (const Layer* layer :
         {static_cast<const Layer*>(&delta), static_cast<const Layer*>(&convolution)}) {
      for (CpuLevel level : SupportedCpuLevels()) {
        ThreadPool pool(3);
        const KernelContext ctx = {level, &pool};
        const int begins[] = {0, 1, 9, 9, 22, 30};  // one slice is empty
        std::vector<Floats> states, alone;
        std::vector<RecurrentSlice> slices;
        for (int s = 0; s < 5; ++s) states.push_back(Random(random, layer->state_floats(), 0.5f));
        alone = states;
        Floats out(layer->out_floats()), out_alone(layer->out_floats());
        for (size_t s = 0; s < 5; ++s) {
          const int count = begins[s + 1] - begins[s];
          slices.push_back({begins[s], count, states[s].data(), {}});
          const RecurrentSlice own = {begins[s], count, alone[s].data(), {}};
          layer->Run(ctx, {&own, 1}, out_alone.data());
        }
        layer->Run(ctx, slices, out.data());
        EXPECT_TRUE(SameBits(out, out_alone));
        for (size_t s = 0; s < 5; ++s) EXPECT_TRUE(SameBits(states[s], alone[s]));
      }
    }
  }
}

// 40 steps; each rounds sums of 128 products of numbers of norm about 1 (|error| <= 132 x 2^-24
// x sum |k s| <= 8e-6 x 0.6), and the decay keeps old errors from growing: 1e-4 is 20 such steps.
TEST(GatedDelta, FollowsTheRecurrenceOfThePaper) {
  std::mt19937 random(13);
  for (const auto& [map, decay] : {std::pair{DeltaHeadMap::kTiled, DeltaDecay::kPerHead},
                                   std::pair{DeltaHeadMap::kGrouped, DeltaDecay::kPerHead},
                                   std::pair{DeltaHeadMap::kGrouped, DeltaDecay::kPerKeyChannel}}) {
    const GatedDeltaShape shape = {2, 4, 128, 32, map, decay};
    const DeltaLayer layer(random, shape, 40);
    const Floats start = Random(random, layer.state_floats(), 0.1f);
    std::vector<double> exact_state(start.begin(), start.end());
    std::vector<double> exact_out(layer.out_floats());
    layer.Exact(exact_state, exact_out);
    ThreadPool pool(2);
    Floats state = start, out(layer.out_floats());
    const RecurrentSlice slice = {0, 40, state.data(), {}};
    layer.Run({DetectCpuLevel(), &pool}, {&slice, 1}, out.data());
    for (size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], exact_out[i], 1e-4);
    for (size_t i = 0; i < state.size(); ++i) ASSERT_NEAR(state[i], exact_state[i], 1e-4);
  }
}

TEST(GatedDelta, HeadMaps) {
  const GatedDeltaShape tiled = {2, 6, 16, 16, DeltaHeadMap::kTiled};
  const GatedDeltaShape grouped = {2, 6, 16, 16, DeltaHeadMap::kGrouped};
  const int want_tiled[] = {0, 1, 0, 1, 0, 1};
  const int want_grouped[] = {0, 0, 0, 1, 1, 1};
  for (int h = 0; h < 6; ++h) {
    EXPECT_EQ(DeltaKeyHead(tiled, h), want_tiled[h]);
    EXPECT_EQ(DeltaKeyHead(grouped, h), want_grouped[h]);
  }
}

}  // namespace
}  // namespace cairn
