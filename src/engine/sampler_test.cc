#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "engine/exact_math.h"
#include "kernels/vector_ops.h"

namespace cairn {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> RandomLogits(int vocab, uint64_t seed) {
  std::vector<float> logits(vocab);
  for (int t = 0; t < vocab; ++t)
    logits[t] = static_cast<float>(CounterUniform(seed, t, 7) * 16.0 - 8.0);
  return logits;
}

Token SampleWith(const std::vector<float>& logits, const SamplingParams& params,
                 const std::vector<Token>& tokens = {}, int64_t prompt_size = 0,
                 std::vector<Token> masked = {}, std::vector<Token> end_tokens = {}) {
  SamplerScratch scratch(static_cast<int>(logits.size()));
  const Token t = Sample({.logits = logits,
                          .tokens = tokens,
                          .prompt_size = prompt_size,
                          .params = &params,
                          .masked = masked,
                          .end_tokens = end_tokens},
                         scratch);
  for (int32_t c : scratch.counts) EXPECT_EQ(c, 0);
  return t;
}

// The tokens that come out over many positions, with their counts.
std::map<Token, int> Histogram(const std::vector<float>& logits, const SamplingParams& params,
                               int draws, const std::vector<Token>& end_tokens = {}) {
  std::map<Token, int> counts;
  SamplerScratch scratch(static_cast<int>(logits.size()));
  std::vector<Token> tokens;
  for (int i = 0; i < draws; ++i) {
    tokens.push_back(0);
    ++counts[Sample({.logits = logits,
                     .tokens = tokens,
                     .prompt_size = static_cast<int64_t>(tokens.size()),
                     .params = &params,
                     .masked = {},
                     .end_tokens = end_tokens},
                    scratch)];
  }
  return counts;
}

TEST(ExactMath, LogIsWithinItsBound) {
  for (int i = 1; i <= 20000; ++i) {
    const double x = 0.37 * i;
    EXPECT_NEAR(LogOfPositive(x), std::log(x), 1e-15 * std::max(1.0, std::fabs(std::log(x)))) << x;
  }
  EXPECT_EQ(LogOfPositive(1.0), 0.0);
}

// Known answer of Philox 4x32-10 for counter 0 and key 0 (Random123's kat_vectors).
TEST(CounterUniform, IsPhilox) {
  EXPECT_EQ(CounterUniform(0, 0, 0), static_cast<double>(0x6627e8d5e169c58dull >> 11) * 0x1.0p-53);
  EXPECT_NE(CounterUniform(1, 0, 0), CounterUniform(0, 0, 0));
  EXPECT_NE(CounterUniform(0, 1, 0), CounterUniform(0, 0, 0));
  EXPECT_NE(CounterUniform(0, 0, 1), CounterUniform(0, 0, 0));
}

TEST(SelectTop, EqualsAFullSort) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    std::vector<float> logits = RandomLogits(500, seed);
    for (int i = 0; i < 100; ++i) logits[i * 3] = logits[i];  // ties
    logits[17] = kNan;
    logits[18] = kInf;
    logits[19] = -kInf;
    auto key = [&](Token t) {
      return std::isnan(logits[t]) ? -kInf : std::min(logits[t], 3.4e38f);
    };
    std::vector<Token> want(logits.size());
    std::iota(want.begin(), want.end(), 0);
    std::stable_sort(want.begin(), want.end(), [&](Token a, Token b) { return key(a) > key(b); });
    for (size_t k : {0, 1, 2, 5, 64, 499, 500}) {
      std::vector<Token> got;
      SelectTop(logits, k, got);
      EXPECT_EQ(got, std::vector<Token>(want.begin(), want.begin() + k)) << seed << " " << k;
    }
  }
}

TEST(Sample, GreedyTakesTheLargestAndTheLowerIdOfATie) {
  EXPECT_EQ(SampleWith({1, 3, 2, 3}, {}), 1);
  EXPECT_EQ(SampleWith({kNan, -kInf, -5, kNan}, {}), 2);
  EXPECT_EQ(SampleWith({1, kInf, 2}, {}), 1);
  EXPECT_EQ(SampleWith({kNan, kNan}, {}), 0);
  EXPECT_EQ(SampleWith({-kInf, -kInf}, {.temperature = 1.0f}), 0);
}

TEST(Sample, SameSeedAndPositionSameToken) {
  const std::vector<float> logits = RandomLogits(1000, 3);
  std::set<Token> different;
  for (uint64_t seed = 0; seed < 30; ++seed) {
    const SamplingParams p{.temperature = 1.0f, .seed = seed};
    EXPECT_EQ(SampleWith(logits, p, {1, 2, 3}), SampleWith(logits, p, {4, 5, 6}));
    different.insert(SampleWith(logits, p, {1, 2, 3}));
  }
  EXPECT_GT(different.size(), 10u);
}

TEST(Sample, DrawsByProbability) {
  const std::vector<float> logits = {0.0f, std::log(2.0f), std::log(5.0f), -kInf};
  const int draws = 40000;
  auto h = Histogram(logits, {.temperature = 1.0f, .seed = 5}, draws);
  // Five standard deviations of a binomial share: 5 * sqrt(p (1 - p) / draws) < 0.0125.
  EXPECT_NEAR(h[0] / double(draws), 1 / 8.0, 0.0125);
  EXPECT_NEAR(h[1] / double(draws), 2 / 8.0, 0.0125);
  EXPECT_NEAR(h[2] / double(draws), 5 / 8.0, 0.0125);
  EXPECT_EQ(h.count(3), 0u);
  // Temperature 2: shares 1 : sqrt 2 : sqrt 5.
  h = Histogram(logits, {.temperature = 2.0f, .seed = 6}, draws);
  EXPECT_NEAR(h[2] / double(draws), std::sqrt(5.0) / (1 + std::sqrt(2.0) + std::sqrt(5.0)), 0.0125);
}

TEST(Sample, FiltersKeepWhatTheyName) {
  // Probabilities 0.4, 0.3, 0.2, 0.1, not in order of id.
  const std::vector<float> logits = {std::log(0.1f), std::log(0.4f), std::log(0.2f),
                                     std::log(0.3f)};
  auto kept = [&](SamplingParams p, std::vector<Token> end_tokens = {}) {
    p.temperature = 1.0f;
    std::set<Token> set;
    for (auto& [t, n] : Histogram(logits, p, 2000, end_tokens)) set.insert(t);
    return set;
  };
  EXPECT_EQ(kept({}), (std::set<Token>{0, 1, 2, 3}));
  EXPECT_EQ(kept({.top_k = 1}), (std::set<Token>{1}));
  EXPECT_EQ(kept({.top_k = 3}), (std::set<Token>{1, 2, 3}));
  EXPECT_EQ(kept({.top_p = 0.35f}), (std::set<Token>{1}));
  EXPECT_EQ(kept({.top_p = 0.45f}), (std::set<Token>{1, 3}));
  EXPECT_EQ(kept({.top_p = 0.85f}), (std::set<Token>{1, 2, 3}));
  EXPECT_EQ(kept({.top_p = 0.0f}), (std::set<Token>{1}));
  EXPECT_EQ(kept({.min_p = 0.6f}), (std::set<Token>{1, 3}));
  EXPECT_EQ(kept({.top_p = 0.5f, .top_k = 3}), (std::set<Token>{1, 3}));  // of 4/9, 3/9, 2/9
  EXPECT_EQ(kept({.xtc_probability = 1.0f, .xtc_threshold = 0.15f}), (std::set<Token>{0, 2}));
  EXPECT_EQ(kept({.xtc_probability = 1.0f, .xtc_threshold = 0.15f}, {1}),
            (std::set<Token>{0, 1, 2}));
  EXPECT_EQ(kept({.xtc_probability = 1.0f, .xtc_threshold = 0.5f}), (std::set<Token>{0, 1, 2, 3}));
}

// Peaked: a few best tokens reach the share; flat: thousands do; equal: ties by the lower id.
TEST(Sample, TopPOverALargeVocabularyEqualsASort) {
  for (const float spread : {1.0f, 0.1f, 0.0f}) {
    std::vector<float> logits = RandomLogits(20000, 11);
    for (float& l : logits) l *= spread;
    logits[9] = kNan;
    const SamplingParams p{.temperature = 0.7f, .top_p = 0.5f};
    std::vector<Token> order;
    SelectTop(logits, logits.size() - 1, order);
    double total = 0, share = 0;
    auto weight = [&](Token t) { return std::exp((logits[t] - logits[order[0]]) / 0.7); };
    for (Token t : order) total += weight(t);
    size_t count = 0;
    while (share < 0.5 * total) share += weight(order[count++]);
    // One more: the share may be reached exactly, up to rounding.
    const std::set<Token> allowed(order.begin(), order.begin() + count + 1);
    std::set<Token> seen;
    for (auto& [t, n] : Histogram(logits, p, 3000)) {
      EXPECT_TRUE(allowed.count(t)) << t;
      seen.insert(t);
    }
    // Draws that miss the last tenth of the candidates: (1 - share of it)^3000.
    const std::set<Token> last(order.begin() + count * 9 / 10, order.begin() + count);
    if (count > 100) {
      EXPECT_TRUE(
          std::any_of(last.begin(), last.end(), [&](Token t) { return seen.count(t) > 0; }));
    }
  }
}

// The definition: weights one by one, their sums by blocks of 256 over 16 lanes, then a search.
TEST(Sample, AllLevelsChooseByTheDefinition) {
  std::vector<float> logits = RandomLogits(5000, 21);
  logits[3] = kNan, logits[5] = -kInf;
  for (const float temperature : {0.01f, 0.8f, 30.0f, 1e-42f, 7.0f}) {
    if (temperature == 7.0f) logits[4] = logits[4999] = kInf;  // last: all others weigh 0
    const float scale = std::min(1 / temperature, 1e30f);
    auto sane = [](float l) { return std::isnan(l) ? -kInf : std::min(l, 0x1.fffffep+127f); };
    float max = -kInf;
    for (const float l : logits) max = std::max(max, sane(l));
    std::vector<double> sums;
    std::vector<float> w;
    for (size_t begin = 0; begin < logits.size(); begin += 256) {
      float lanes[16] = {};
      for (size_t t = begin; t < std::min<size_t>(begin + 256, logits.size()); ++t) {
        w.push_back(ExpF((sane(logits[t]) - max) * scale));
        lanes[t % 16] += w.back();
      }
      for (int fold = 8; fold > 0; fold /= 2)
        for (int j = 0; j < fold; ++j) lanes[j] += lanes[j + fold];
      sums.push_back(lanes[0]);
    }
    double total = 0;
    for (const double sum : sums) total += sum;
    for (uint64_t seed = 0; seed < 40; ++seed) {
      double rest = CounterUniform(seed, 0, 0) * total;
      size_t block = 0;
      while (rest >= sums[block]) rest -= sums[block++];
      size_t t = block * 256;
      while (rest >= w[t]) rest -= w[t++];
      for (const CpuLevel level : SupportedCpuLevels()) {
        SamplerScratch scratch(5000, level);
        const SamplingParams params{.temperature = temperature, .seed = seed};
        EXPECT_EQ(
            Sample(
                {.logits = logits, .tokens = {}, .params = &params, .masked = {}, .end_tokens = {}},
                scratch),
            static_cast<Token>(t));
      }
    }
  }
}

TEST(Sample, BiasMaskAndPenalties) {
  const std::vector<float> logits = {1.0f, 2.0f, 3.0f, 4.0f};
  EXPECT_EQ(SampleWith(logits, {.logit_bias = {{0, 100.0f}, {99, 100.0f}, {-1, 100.0f}}}), 0);
  EXPECT_EQ(SampleWith(logits, {}, {}, 0, {3}), 2);
  EXPECT_EQ(SampleWith(logits, {.logit_bias = {{3, 100.0f}}}, {}, 0, {3}), 2);
  // 4 / 1.5 < 3; the penalty counts once per distinct token.
  EXPECT_EQ(SampleWith(logits, {.repetition_penalty = 1.5f}, {3, 3}, 2), 2);
  EXPECT_EQ(
      SampleWith(logits, {.repetition_penalty = 1.5f, .repetition_context_size = 1}, {3, 0}, 2), 3);
  EXPECT_EQ(SampleWith({-1.0f, -1.1f}, {.repetition_penalty = 2.0f}, {0}, 1), 1);
  // Presence and frequency look at generated tokens only.
  EXPECT_EQ(SampleWith(logits, {.presence_penalty = 1.5f}, {3, 3}, 2), 3);
  EXPECT_EQ(SampleWith(logits, {.presence_penalty = 1.5f}, {3, 3}, 1), 2);
  EXPECT_EQ(SampleWith(logits, {.frequency_penalty = 0.4f}, {0, 3, 3}, 1), 3);  // 4 - 0.8 > 3
  EXPECT_EQ(SampleWith(logits, {.frequency_penalty = 0.4f}, {0, 3, 3, 3}, 1), 2);
}

TEST(Logprobs, EqualLogSoftmaxOfTheRawLogits) {
  std::vector<float> logits = RandomLogits(1003, 9);
  logits[7] = kNan;
  logits[8] = -kInf;
  SamplerScratch scratch(1003);
  std::vector<TokenLogprob> top;
  const TokenLogprob chosen = Logprobs(logits, 500, 20, scratch, top);
  double sum = 0;
  for (float l : logits)
    if (!std::isnan(l)) sum += std::exp(static_cast<double>(l));
  EXPECT_EQ(chosen.token, 500);
  EXPECT_NEAR(chosen.logprob, logits[500] - std::log(sum), 2e-6);  // sampler.h
  ASSERT_EQ(top.size(), 20u);
  for (size_t i = 1; i < top.size(); ++i) EXPECT_GE(top[i - 1].logprob, top[i].logprob);
  EXPECT_EQ(Logprobs(logits, 7, 0, scratch, top).logprob, kLogprobMin);
  EXPECT_TRUE(top.empty());
}

TEST(Logprobs, TiesAreSortedById) {
  std::vector<float> logits(100, 1.0f);
  SamplerScratch scratch(100);
  std::vector<TokenLogprob> top;
  Logprobs(logits, 0, 5, scratch, top);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(top[i].token, i);
  EXPECT_NEAR(top[0].logprob, -std::log(100.0), 1e-14);  // sums of ones are exact
}

}  // namespace
}  // namespace cairn
