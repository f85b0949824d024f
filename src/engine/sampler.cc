#include "engine/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "engine/exact_math.h"
#include "kernels/vector_ops.h"

namespace cairn {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr uint32_t kCategoricalStream = 0;
constexpr uint32_t kXtcStream = 1;
// Of the logits' scale: 0 times an infinite one, for the largest logit, would be NaN.
constexpr float kScaleMax = 1e30f;
// top_p looks at so many of the best tokens before it bins all of them.
constexpr size_t kTopPFirst = 64;
constexpr size_t kBins = (0x3f800000 >> 19) + 1;  // weights are at most 1

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
using Mask4 = int32_t __attribute__((vector_size(16)));

Float4 Load4(const float* p) {
  Float4 v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// The largest sane logit. NaN never compares greater.
float Largest(std::span<const float> logits) {
  Float4 m[4];
  for (Float4& lanes : m) lanes = Float4{} + kMinusInfinity;
  size_t i = 0;
  for (; i + 16 <= logits.size(); i += 16) {
    for (size_t q = 0; q < 4; ++q) {
      const Float4 v = Load4(&logits[i + 4 * q]);
      m[q] = v > m[q] ? v : m[q];
    }
  }
  float largest = kMinusInfinity;
  for (const Float4& lanes : m)
    for (size_t j = 0; j < 4; ++j) largest = std::max(largest, lanes[j]);
  for (; i < logits.size(); ++i)
    if (logits[i] > largest) largest = logits[i];
  return std::min(largest, std::numeric_limits<float>::max());
}

// Steps from `begin` on over 16 logits at a time while hit(four of them) is false for all; stops
// less than 16 before the end.
template <typename Hit>
size_t Skip(std::span<const float> logits, size_t begin, Hit hit) {
  for (; begin + 16 <= logits.size(); begin += 16) {
    const float* p = &logits[begin];
    const Mask4 hits = hit(Load4(p)) | hit(Load4(p + 4)) | hit(Load4(p + 8)) | hit(Load4(p + 12));
    uint64_t halves[2];
    std::memcpy(halves, &hits, sizeof halves);
    if ((halves[0] | halves[1]) != 0) break;
  }
  return begin;
}

Token Argmax(std::span<const float> logits) {
  const float largest = Largest(logits);
  if (largest == kMinusInfinity) return 0;
  // >=: +inf counts as the largest float.
  size_t t = Skip(logits, 0, [&](Float4 v) { return v >= largest; });
  while (!(logits[t] >= largest)) ++t;
  return static_cast<Token>(t);
}

// How a logit becomes a weight: exp((l - max) * scale), 0 for NaN.
struct Weighing {
  float max;
  float scale;

  // Equal in bits to a lane of ExpWeights.
  double operator()(float logit) const {
    return static_cast<double>(ExpF((Sane(logit) - max) * scale));
  }
};

// Weights and block sums of all logits.
void WeighAll(std::span<const float> logits, Weighing weighing, SamplerScratch& s) {
  ExpWeights(s.level, logits.data(), static_cast<int64_t>(logits.size()), weighing.max,
             weighing.scale, s.all_weights.data(), s.block_sums.data());
}

// Of the block sums, in order.
double Total(size_t vocab_size, const SamplerScratch& s) {
  double total = 0;
  for (size_t b = 0; b * kExpBlock < vocab_size; ++b) total += static_cast<double>(s.block_sums[b]);
  return total;
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

// Ids become candidates with their weights.
void WeighCandidates(std::span<const float> logits, Weighing weighing, SamplerScratch& s) {
  s.weights.resize(s.ids.size());
  for (size_t i = 0; i < s.ids.size(); ++i) s.weights[i] = weighing(logits[s.ids[i]]);
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

// Weights of about one size: exponent and four bits of the mantissa.
size_t Bin(float weight) { return std::bit_cast<uint32_t>(weight) >> 19; }

bool Better(std::span<const float> logits, Token a, Token b) {
  const float x = Sane(logits[a]), y = Sane(logits[b]);
  return x > y || (x == y && a < b);
}

// top_p where many tokens share the weight, without sorting them: whole bins of weights from the
// top, then the best of the bin in which the share is reached. Candidates by id.
void SelectShareByBins(std::span<const float> logits, double top_p, SamplerScratch& s) {
  std::fill(s.bin_sums.begin(), s.bin_sums.end(), 0.0);
  for (size_t t = 0; t < logits.size(); ++t)
    s.bin_sums[Bin(s.all_weights[t])] += static_cast<double>(s.all_weights[t]);
  double total = 0, above = 0;
  for (size_t b = s.bin_sums.size(); b-- > 0;) total += s.bin_sums[b];
  size_t cut = s.bin_sums.size() - 1;
  while (cut > 0 && above + s.bin_sums[cut] < top_p * total) above += s.bin_sums[cut--];
  s.ids.clear();
  for (size_t t = 0; t < logits.size(); ++t)
    if (Bin(s.all_weights[t]) == cut) s.ids.push_back(static_cast<Token>(t));
  std::sort(s.ids.begin(), s.ids.end(), [&](Token a, Token b) { return Better(logits, a, b); });
  size_t last = 0;  // of the bin's best that are kept
  for (; last + 1 < s.ids.size(); ++last) {
    above += static_cast<double>(s.all_weights[s.ids[last]]);
    if (above >= top_p * total) break;
  }
  const Token worst = s.ids[last];
  s.ids.clear();
  s.weights.clear();
  for (size_t t = 0; t < logits.size(); ++t) {
    const float w = s.all_weights[t];
    const size_t bin = Bin(w);
    const Token token = static_cast<Token>(t);
    if (bin < cut || (bin == cut && Better(logits, worst, token))) continue;
    s.ids.push_back(token);
    s.weights.push_back(static_cast<double>(w));
  }
}

// The candidates after top_k and top_p, of `top_k` < vocab or top_p < 1.
void SelectCandidates(std::span<const float> logits, size_t top_k, double top_p, Weighing weighing,
                      SamplerScratch& s) {
  if (top_k < logits.size()) {
    SelectTop(logits, top_k, s.ids);
    WeighCandidates(logits, weighing, s);
    if (top_p < 1.0) CutAtShare(Sum(s.weights), top_p, s);
    return;
  }
  WeighAll(logits, weighing, s);
  SelectTop(logits, std::min(kTopPFirst, logits.size()), s.ids);
  WeighCandidates(logits, weighing, s);
  if (CutAtShare(Total(logits.size(), s), top_p, s) || s.ids.size() == logits.size()) return;
  SelectShareByBins(logits, top_p, s);
}

// All tokens whose weight is at least `floor` and not 0, by id.
void CollectWeights(size_t vocab_size, double floor, SamplerScratch& s) {
  s.ids.clear();
  s.weights.clear();
  for (size_t t = 0; t < vocab_size; ++t) {
    const double w = static_cast<double>(s.all_weights[t]);
    if (w < floor || w == 0) continue;
    s.ids.push_back(static_cast<Token>(t));
    s.weights.push_back(w);
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

// The least weight that min_p keeps.
double MinPFloor(double min_p, double largest) { return std::clamp(min_p, 0.0, 1.0) * largest; }

void ApplyMinP(double min_p, SamplerScratch& s) {
  if (!(min_p > 0.0)) return;
  const double floor = MinPFloor(min_p, *std::max_element(s.weights.begin(), s.weights.end()));
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

// Inversion of the cumulative sum over candidates.
Token Choose(double uniform, const SamplerScratch& s) {
  double rest = uniform * Sum(s.weights);
  size_t last_possible = 0;
  for (size_t i = 0; i < s.weights.size(); ++i) {
    if (rest < s.weights[i]) return s.ids[i];
    rest -= s.weights[i];
    if (s.weights[i] > 0) last_possible = i;
  }
  return s.ids[last_possible];  // rounding
}

// The same over all tokens: first the block, then the token in it.
Token ChooseOfAll(double uniform, size_t vocab_size, const SamplerScratch& s) {
  double rest = uniform * Total(vocab_size, s);
  size_t block = 0, last_block = 0;
  for (; block * kExpBlock < vocab_size; ++block) {
    const double sum = static_cast<double>(s.block_sums[block]);
    if (sum > 0) last_block = block;
    if (rest < sum) break;
    rest -= sum;
  }
  const bool overrun = block * kExpBlock >= vocab_size;  // rounding of the whole sum
  const size_t begin = (overrun ? last_block : block) * kExpBlock;
  const size_t end = std::min<size_t>(begin + kExpBlock, vocab_size);
  size_t last_possible = begin;
  for (size_t t = begin; t < end; ++t) {
    const double w = static_cast<double>(s.all_weights[t]);
    if (!overrun && rest < w) return static_cast<Token>(t);
    rest -= w;
    if (w > 0) last_possible = t;
  }
  return static_cast<Token>(last_possible);  // rounding inside the block
}

}  // namespace

SamplerScratch::SamplerScratch(int vocab_size, CpuLevel cpu_level)
    : level(cpu_level),
      logits(vocab_size),
      counts(vocab_size),
      all_weights(vocab_size),
      block_sums((vocab_size + kExpBlock - 1) / kExpBlock),
      bin_sums(kBins) {
  ids.reserve(2 * static_cast<size_t>(vocab_size) + 1);  // SelectTop's window
  weights.reserve(static_cast<size_t>(vocab_size));
}

Token Sample(const SampleInput& input, SamplerScratch& scratch) {
  CHECK(!input.logits.empty() && input.params != nullptr);
  const SamplingParams& p = *input.params;
  const std::span<const float> logits = Process(input, scratch);
  if (!(p.temperature > 0.0f)) return Argmax(logits);
  const Weighing weighing{Largest(logits), std::min(1.0f / p.temperature, kScaleMax)};
  if (weighing.max == kMinusInfinity) return 0;  // nothing is allowed: a tie of all
  const size_t top_k =
      p.top_k > 0 ? std::min(static_cast<size_t>(p.top_k), logits.size()) : logits.size();
  const double uniform = CounterUniform(p.seed, input.tokens.size(), kCategoricalStream);
  const bool sorted = top_k < logits.size() || p.top_p < 1.0f;
  const bool xtc = p.xtc_probability > 0.0f;
  if (sorted) {
    SelectCandidates(logits, top_k, p.top_p, weighing, scratch);
    ApplyMinP(p.min_p, scratch);
  } else {
    WeighAll(logits, weighing, scratch);
    if (!(p.min_p > 0.0f) && !xtc) return ChooseOfAll(uniform, logits.size(), scratch);
    CollectWeights(logits.size(), MinPFloor(p.min_p, 1.0), scratch);  // the largest weight is 1
  }
  ApplyXtc(input, scratch);
  return Choose(uniform, scratch);
}

TokenLogprob Logprobs(std::span<const float> logits, Token chosen, int top_count,
                      SamplerScratch& scratch, std::vector<TokenLogprob>& top) {
  const float max = Largest(logits);
  double log_sum = 0;
  if (max != kMinusInfinity) {
    WeighAll(logits, {max, 1.0f}, scratch);
    log_sum = static_cast<double>(max) + LogOfPositive(Total(logits.size(), scratch));
  }
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
  auto better = [&](Token a, Token b) { return Better(logits, a, b); };
  ids.clear();
  if (count == 0) return;
  // A window of the best so far: once it holds 2 * count ids it is cut to the best `count`, whose
  // worst is the bar for the next ones. Ids come in ascending order, so an equal logit never
  // passes.
  float bar = kMinusInfinity;
  bool has_bar = false;
  auto above_bar = [&](Float4 v) { return v > bar; };
  for (size_t t = 0; t < logits.size(); ++t) {
    if (has_bar && (t = Skip(logits, t, above_bar)) >= logits.size()) break;
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
