// The gated short convolution against its definition, in bits, on every level, for every chunking,
// thread count and tap.
#include "kernels/short_conv.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

namespace cairn {
namespace {

using Floats = std::vector<float>;

Floats Random(std::mt19937& random, size_t count) {
  std::normal_distribution<float> normal(0.0f, 1.0f);
  Floats f(count);
  for (float& v : f) v = normal(random);
  return f;
}

bool SameBits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

struct Problem {
  Problem(ShortConvShape s, int rows, bool with_bias, uint32_t seed) : shape(s), rows(rows) {
    std::mt19937 random(seed);
    ld = 3 * s.channels + 5;
    bcu = Random(random, static_cast<size_t>(rows) * ld);
    w = Random(random, static_cast<size_t>(s.kernel) * s.channels);
    if (with_bias) bias = Random(random, s.channels);
    start = Random(random, s.state_floats());
  }

  // y [rows, channels], and the state after each row.
  void Define(Floats& y, std::vector<Floats>& states) const {
    const int channels = shape.channels, taps = shape.kernel;
    Floats state = start;
    for (int t = 0; t < rows; ++t) {
      const float* row = &bcu[t * ld];
      for (int c = 0; c < channels; ++c) {
        const float s = row[c] * row[2 * channels + c];
        float sum = bias.empty() ? 0.0f : bias[c];
        for (int j = 0; j < taps; ++j)
          sum = std::fma(w[j * channels + c], j < taps - 1 ? state[j * channels + c] : s, sum);
        y.push_back(row[channels + c] * sum);
        for (int j = 0; j + 2 < taps; ++j) state[j * channels + c] = state[(j + 1) * channels + c];
        state[(taps - 2) * channels + c] = s;
      }
      states.push_back(state);
    }
  }

  ShortConvShape shape;
  int rows;
  int64_t ld;
  Floats bcu, w, bias, start;
};

class ShortConvTest : public ::testing::TestWithParam<ShortConvShape> {};

TEST_P(ShortConvTest, EveryChunkingLevelAndTapEqualsTheDefinition) {
  for (const bool with_bias : {false, true}) {
    const Problem p(GetParam(), 23, with_bias, 7);
    Floats want;
    std::vector<Floats> states;
    p.Define(want, states);
    std::mt19937 random(11);
    for (const CpuLevel level : SupportedCpuLevels()) {
      for (const int threads : {1, 3}) {
        ThreadPool pool(threads);
        for (int most = 1; most <= p.rows; most += 7) {
          Floats y(want.size()), state = p.start;
          for (int begin = 0; begin < p.rows;) {
            const int count =
                std::min<int>(p.rows - begin, std::uniform_int_distribution<int>(1, most)(random));
            const int middle = count / 2;
            Floats first_tap(state.size()), second_tap(state.size());
            const StateTap taps[] = {{0, first_tap.data()}, {middle, second_tap.data()}};
            const RecurrentSlice slice[] = {{begin, count, state.data(), taps}};
            ShortConv({level, &pool}, p.shape, slice, p.bcu.data(), p.ld, p.w, p.bias, y.data(),
                      p.shape.channels);
            EXPECT_TRUE(SameBits(first_tap, states[begin]));
            EXPECT_TRUE(SameBits(second_tap, states[begin + middle]));
            begin += count;
          }
          EXPECT_TRUE(SameBits(y, want)) << CpuLevelName(level) << ", at most " << most;
          EXPECT_TRUE(SameBits(state, states.back()));
        }
      }
    }
  }
}

TEST_P(ShortConvTest, SlicesDoNotMeet) {
  const Problem p(GetParam(), 9, false, 3);
  Floats want;
  std::vector<Floats> states;
  p.Define(want, states);
  for (const CpuLevel level : SupportedCpuLevels()) {
    ThreadPool pool(2);
    // The same rows twice, as two sequences of one step.
    Floats twice = p.bcu;
    twice.insert(twice.end(), p.bcu.begin(), p.bcu.end());
    Floats a = p.start, b = p.start, y(2 * want.size());
    const RecurrentSlice slices[] = {{0, p.rows, a.data(), {}}, {p.rows, p.rows, b.data(), {}}};
    ShortConv({level, &pool}, p.shape, slices, twice.data(), p.ld, p.w, {}, y.data(),
              p.shape.channels);
    EXPECT_EQ(std::memcmp(y.data(), want.data(), want.size() * sizeof(float)), 0);
    EXPECT_EQ(std::memcmp(&y[want.size()], want.data(), want.size() * sizeof(float)), 0);
    EXPECT_TRUE(SameBits(a, states.back()) && SameBits(b, states.back()));
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, ShortConvTest,
                         ::testing::Values(ShortConvShape{64, 3}, ShortConvShape{37, 3},
                                           ShortConvShape{600, 3}, ShortConvShape{48, 4},
                                           ShortConvShape{16, 2}, ShortConvShape{1030, 5}));

}  // namespace
}  // namespace cairn
