#include "engine/sampler.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "engine/exact_math.h"

namespace cairn {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr uint32_t kCategoricalStream = 0;
constexpr uint32_t kXtcStream = 1;

float Sane(float logit) {
  if (!(logit == logit)) return kMinusInfinity;
  return logit < std::numeric_limits<float>::max() ? logit : std::numeric_limits<float>::max();
}

bool InVocab(Token token, size_t vocab_size) {
  return token >= 0 && static_cast<size_t>(token) < vocab_size;
}

bool NeedsProcessing(const SampleInput& in) {
  const SamplingParams& p = *in.params;
  return !p.logit_bias.empty() || !in.masked.empty() || p.repetition_penalty != 1.0f ||
         p.presence_penalty != 0.0f || p.frequency_penalty != 0.0f;
}

void ApplyRepetitionPenalty(const SampleInput& in, SamplerScratch& s) {
  const float penalty = in.params->repetition_penalty;
  const size_t window = static_cast<size_t>(std::max(0, in.params->repetition_context_size));
  if (penalty == 1.0f || !(penalty > 0.0f)) return;
  const auto recent = in.tokens.last(std::min(window, in.tokens.size()));
  for (Token t : recent) {
    if (!InVocab(t, s.logits.size()) || s.counts[t]++ > 0) continue;
    float& l = s.logits[t];
    l = l < 0 ? l * penalty : l / penalty;
  }
  for (Token t : recent)
    if (InVocab(t, s.logits.size())) s.counts[t] = 0;
}

void ApplyCountPenalties(const SampleInput& in, SamplerScratch& s) {
  const SamplingParams& p = *in.params;
  if (p.presence_penalty == 0.0f && p.frequency_penalty == 0.0f) return;
  const auto generated = in.tokens.subspan(
      std::min(in.tokens.size(), static_cast<size_t>(std::max<int64_t>(0, in.prompt_size))));
  for (Token t : generated)
    if (InVocab(t, s.logits.size())) ++s.counts[t];
  for (Token t : generated) {
    if (!InVocab(t, s.logits.size()) || s.counts[t] == 0) continue;
    s.logits[t] -= p.presence_penalty;
    s.logits[t] -= p.frequency_penalty * static_cast<float>(s.counts[t]);
    s.counts[t] = 0;
  }
}

// Steps 1 to 5. Returns the logits to choose from: the input itself where nothing changes it.
std::span<const float> Process(const SampleInput& in, SamplerScratch& s) {
  if (!NeedsProcessing(in)) return in.logits;
  std::transform(in.logits.begin(), in.logits.end(), s.logits.begin(), Sane);
  for (const auto& [token, bias] : in.params->logit_bias)
    if (InVocab(token, s.logits.size()) && bias == bias) s.logits[token] += bias;
  for (Token t : in.masked)
    if (InVocab(t, s.logits.size())) s.logits[t] = kMinusInfinity;
  ApplyRepetitionPenalty(in, s);
  ApplyCountPenalties(in, s);
  return s.logits;
}

using Float4 = float __attribute__((vector_size(16)));

Float4 Load4(const float* p) {
  Float4 v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// The largest sane logit. NaN never compares greater.
float Largest(std::span<const float> logits) {
  Float4 m = {kMinusInfinity, kMinusInfinity, kMinusInfinity, kMinusInfinity};
  size_t i = 0;
  for (; i + 4 <= logits.size(); i += 4) {
    const Float4 v = Load4(&logits[i]);
    m = v > m ? v : m;
  }
  float largest = std::max(std::max(m[0], m[1]), std::max(m[2], m[3]));
  for (; i < logits.size(); ++i)
    if (logits[i] > largest) largest = logits[i];
  return std::min(largest, std::numeric_limits<float>::max());
}

Token Argmax(std::span<const float> logits) {
  const float largest = Largest(logits);
  if (largest == kMinusInfinity) return 0;
  size_t t = 0;
  while (!(logits[t] >= largest)) ++t;  // >=: +inf counts as the largest float
  return static_cast<Token>(t);
}

// exp((l - max) / temperature), 1 / temperature given; 0 for -inf and NaN. One definition for a
// single logit and for four.
double Weight(float logit, double max, double scale) {
  const double x = static_cast<double>(logit) - max;
  return ExpOfNonPositive((x < 0 ? x : x >= 0 ? 0.0 : x) * scale);
}

Double4 Weights4(const float* logits, double max, double scale) {
  const Double4 x = __builtin_convertvector(Load4(logits), Double4) - max;
  const Int4 is_number = x == x;
  const Int4 negative = x < 0.0;
  // +inf - max is cut to 0; NaN stays and gives 0.
  const Double4 cut =
      reinterpret_cast<Double4>(reinterpret_cast<Int4>(x) & (negative | ~is_number));
  return ExpOfNonPositive4(cut * scale);
}

// The sum of a sequence, in blocks of 256 that are summed over 8 lanes: fast, and one fixed order.
constexpr size_t kSumBlock = 256;

double BlockSum(std::span<const double> w) {
  std::array<double, 8> lanes{};
  size_t i = 0;
  for (; i + 8 <= w.size(); i += 8)
    for (size_t j = 0; j < 8; ++j) lanes[j] += w[i + j];
  for (size_t j = 0; i + j < w.size(); ++j) lanes[j] += w[i + j];
  for (size_t width = 4; width > 0; width /= 2)
    for (size_t j = 0; j < width; ++j) lanes[j] += lanes[j + width];
  return lanes[0];
}

double Sum(std::span<const double> w) {
  double sum = 0;
  for (size_t i = 0; i < w.size(); i += kSumBlock)
    sum += BlockSum(w.subspan(i, std::min(kSumBlock, w.size() - i)));
  return sum;
}

// The candidates after top_k, or all tokens, with their weights.
void FillCandidates(std::span<const float> logits, double temperature, size_t top_k,
                    SamplerScratch& s) {
  const double max = static_cast<double>(Largest(logits));
  if (top_k < logits.size()) {
    SelectTop(logits, top_k, s.ids);
  } else {
    s.ids.resize(logits.size());
    std::iota(s.ids.begin(), s.ids.end(), 0);
  }
  s.weights.resize(s.ids.size());
  if (max == kMinusInfinity) {  // nothing is allowed: the argmax of a tie is the lowest id
    s.ids.resize(1);
    s.weights.assign(1, 1.0);
    return;
  }
  if (s.ids.size() == logits.size()) {
    size_t i = 0;
    for (; i + 4 <= logits.size(); i += 4) {
      const Double4 w = Weights4(&logits[i], max, 1.0 / temperature);
      std::memcpy(&s.weights[i], &w, sizeof w);
    }
    for (; i < logits.size(); ++i) s.weights[i] = Weight(logits[i], max, 1.0 / temperature);
  } else {
    for (size_t i = 0; i < s.ids.size(); ++i)
      s.weights[i] = Weight(logits[s.ids[i]], max, 1.0 / temperature);
  }
}

// Cuts a list that is sorted by weight (best first) where its share of `total` reaches top_p.
// Returns false if the list is too short to reach it.
bool CutAtShare(double total, double top_p, SamplerScratch& s) {
  double share = 0;
  for (size_t i = 0; i < s.weights.size(); ++i) {
    share += s.weights[i];
    if (share >= top_p * total) {
      s.ids.resize(i + 1);
      s.weights.resize(i + 1);
      return true;
    }
  }
  return false;
}

void ApplyTopP(std::span<const float> logits, double top_p, double temperature, SamplerScratch& s) {
  if (!(top_p < 1.0)) return;
  const double total = Sum(s.weights);
  if (s.ids.size() < logits.size()) {  // sorted by top_k already
    CutAtShare(total, top_p, s);
    return;
  }
  const double max = static_cast<double>(Largest(logits));
  for (size_t count = 64;; count *= 8) {  // rarely more than one round
    SelectTop(logits, std::min(count, logits.size()), s.ids);
    s.weights.resize(s.ids.size());
    for (size_t i = 0; i < s.ids.size(); ++i)
      s.weights[i] = Weight(logits[s.ids[i]], max, 1.0 / temperature);
    if (CutAtShare(total, top_p, s) || s.ids.size() == logits.size()) return;
  }
}

template <typename Keep>
void KeepIf(Keep keep, SamplerScratch& s) {
  size_t out = 0;
  for (size_t i = 0; i < s.ids.size(); ++i) {
    if (!keep(s.ids[i], s.weights[i])) continue;
    s.ids[out] = s.ids[i];
    s.weights[out++] = s.weights[i];
  }
  s.ids.resize(out);
  s.weights.resize(out);
}

void ApplyMinP(double min_p, SamplerScratch& s) {
  if (!(min_p > 0.0)) return;
  const double floor = std::min(min_p, 1.0) * *std::max_element(s.weights.begin(), s.weights.end());
  KeepIf([&](Token, double w) { return w >= floor; }, s);
}

void ApplyXtc(const SampleInput& in, SamplerScratch& s) {
  const SamplingParams& p = *in.params;
  if (!(p.xtc_probability > 0.0f)) return;
  if (CounterUniform(p.seed, in.tokens.size(), kXtcStream) >= p.xtc_probability) return;
  const double floor = static_cast<double>(p.xtc_threshold) * Sum(s.weights);
  double least = std::numeric_limits<double>::infinity();
  for (double w : s.weights)
    if (w > floor) least = std::min(least, w);
  auto is_end = [&](Token t) {
    return std::find(in.end_tokens.begin(), in.end_tokens.end(), t) != in.end_tokens.end();
  };
  KeepIf([&](Token t, double w) { return w <= least || is_end(t); }, s);
}

Token Choose(double uniform, const SamplerScratch& s) {
  const std::span<const double> w = s.weights;
  double rest = uniform * Sum(w);
  size_t last_possible = 0;
  for (size_t begin = 0; begin < w.size(); begin += kSumBlock) {
    const auto block = w.subspan(begin, std::min(kSumBlock, w.size() - begin));
    const double sum = BlockSum(block);
    if (sum > 0)
      for (size_t i = 0; i < block.size(); ++i)
        if (block[i] > 0) last_possible = begin + i;
    if (rest >= sum) {
      rest -= sum;
      continue;
    }
    for (size_t i = 0; i < block.size(); ++i) {
      if (rest < block[i]) return s.ids[begin + i];
      rest -= block[i];
    }
    return s.ids[last_possible];  // rounding inside the block
  }
  return s.ids[last_possible];  // rounding of the whole sum
}

// lanes[j] += exp(l[t] - max) for t = j, j + 16, ... in order.
void AddExps(std::span<const float> logits, double max, std::array<double, 16>& lanes) {
  Double4 sums[4] = {};
  size_t i = 0;
  for (; i + 16 <= logits.size(); i += 16)
    for (size_t q = 0; q < 4; ++q) sums[q] += Weights4(&logits[i + 4 * q], max, 1.0);
  std::memcpy(lanes.data(), sums, sizeof sums);
  for (size_t j = 0; i + j < logits.size(); ++j) lanes[j] += Weight(logits[i + j], max, 1.0);
}

}  // namespace

SamplerScratch::SamplerScratch(int vocab_size)
    : logits(vocab_size), counts(vocab_size), ids(vocab_size), weights(vocab_size) {
  ids.reserve(2 * static_cast<size_t>(vocab_size) + 1);  // SelectTop's window
}

Token Sample(const SampleInput& input, SamplerScratch& scratch) {
  CHECK(!input.logits.empty() && input.params != nullptr);
  const SamplingParams& p = *input.params;
  const std::span<const float> logits = Process(input, scratch);
  if (!(p.temperature > 0.0f)) return Argmax(logits);
  const double temperature = static_cast<double>(p.temperature);
  const size_t top_k =
      p.top_k > 0 ? std::min(static_cast<size_t>(p.top_k), logits.size()) : logits.size();
  FillCandidates(logits, temperature, top_k, scratch);
  ApplyTopP(logits, p.top_p, temperature, scratch);
  ApplyMinP(p.min_p, scratch);
  ApplyXtc(input, scratch);
  return Choose(CounterUniform(p.seed, input.tokens.size(), kCategoricalStream), scratch);
}

TokenLogprob Logprobs(std::span<const float> logits, Token chosen, int top_count,
                      SamplerScratch& scratch, std::vector<TokenLogprob>& top) {
  const double max = static_cast<double>(Largest(logits));
  std::array<double, 16> lanes{};
  if (max != kMinusInfinity) AddExps(logits, max, lanes);
  for (size_t width = 8; width > 0; width /= 2)
    for (size_t j = 0; j < width; ++j) lanes[j] += lanes[j + width];
  const double log_sum = lanes[0] > 0 ? max + LogOfPositive(lanes[0]) : 0.0;
  auto logprob = [&](Token t) {
    return std::max(kLogprobMin, static_cast<double>(Sane(logits[t])) - log_sum);
  };
  top.clear();
  if (top_count > 0) {
    SelectTop(logits, std::min(static_cast<size_t>(top_count), logits.size()), scratch.ids);
    for (Token t : scratch.ids) top.push_back({t, logprob(t)});
  }
  return {chosen, logprob(chosen)};
}

double CounterUniform(uint64_t seed, uint64_t position, uint32_t stream) {
  uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
  std::array<uint32_t, 4> x = {static_cast<uint32_t>(position),
                               static_cast<uint32_t>(position >> 32), stream, 0};
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = 0xD2511F53ull * x[0], b = 0xCD9E8D57ull * x[2];
    x = {static_cast<uint32_t>(b >> 32) ^ x[1] ^ key0, static_cast<uint32_t>(b),
         static_cast<uint32_t>(a >> 32) ^ x[3] ^ key1, static_cast<uint32_t>(a)};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  const uint64_t bits = (static_cast<uint64_t>(x[0]) << 32) | x[1];
  return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

void SelectTop(std::span<const float> logits, size_t count, std::vector<Token>& ids) {
  auto better = [&](Token a, Token b) {
    const float x = Sane(logits[a]), y = Sane(logits[b]);
    return x > y || (x == y && a < b);
  };
  ids.clear();
  if (count == 0) return;
  // A window of the best so far: once it holds 2 * count ids it is cut to the best `count`, whose
  // worst is the bar for the next ones. Ids come in ascending order, so an equal logit never
  // passes.
  float bar = kMinusInfinity;
  bool has_bar = false;
  for (size_t t = 0; t < logits.size(); ++t) {
    if (has_bar && !(Sane(logits[t]) > bar)) continue;
    ids.push_back(static_cast<Token>(t));
    if (ids.size() < 2 * count) continue;
    std::nth_element(ids.begin(), ids.begin() + (count - 1), ids.end(), better);
    ids.resize(count);
    bar = Sane(logits[ids[count - 1]]);
    has_bar = true;
  }
  std::sort(ids.begin(), ids.end(), better);
  ids.resize(std::min(count, ids.size()));
}

}  // namespace cairn
