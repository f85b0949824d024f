// From logits to the next token, and to log probabilities. Pure: the token depends only on the
// logits, the parameters, the tokens so far and (seed, position); never on the slot, the batch or
// the machine.
//
// Processors, in this order, l the logits (NaN counts as -inf, +inf as the largest float):
//  1. logit_bias          l[t] += bias
//  2. masked tokens       l[t] = -inf (end tokens before min_tokens, or always with ignore_eos)
//  3. repetition_penalty  for each distinct t of the last repetition_context_size tokens, prompt
//                         included: l[t] = l[t] < 0 ? l[t] * penalty : l[t] / penalty
//  4. presence_penalty    for each distinct t generated so far: l[t] -= penalty
//  5. frequency_penalty   l[t] -= penalty * (how often t was generated so far)
//  6. temperature 0: the largest l, ties by the lower id. Done.
//     Else weights w[t] = Exp((l[t] - max l) * (1 / temperature)) in float32 (vector_ops.h), and
//     of the tokens with w > 0 keep
//  7. top_k    the k largest, ties by the lower id
//  8. top_p    the fewest largest whose share of the kept weight reaches top_p; at least one
//  9. min_p    those with w >= min_p * (largest w)
// 10. xtc      with probability xtc_probability: of the tokens with a share > xtc_threshold drop
//              all but the least likely (end tokens stay); nothing if fewer than two
// 11. one token with probability w / sum, by inversion of the cumulative sum in a fixed order: of
//     the candidates, or of all tokens by blocks of 256, whose sums are those of ExpWeights.
// Names and meanings of 3 and 7 to 10 are mlx-lm's; 4 and 5 are OpenAI's (generated tokens only).
//
// Threads: pure functions; a scratch is used by one call at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/token.h"
#include "engine/request.h"
#include "engine/token_stream.h"
#include "kernels/kernel_context.h"

namespace cairn {

struct SampleInput {
  std::span<const float> logits;  // [vocab]
  std::span<const Token> tokens;  // prompt and generated tokens; the new one gets position
                                  // tokens.size()
  int64_t prompt_size = 0;        // tokens[prompt_size..] are generated
  const SamplingParams* params = nullptr;
  std::span<const Token> masked;      // may not be chosen
  std::span<const Token> end_tokens;  // kept by xtc
};

// Room for one call on a vocabulary; allocated once, so that sampling allocates nothing.
struct SamplerScratch {
  explicit SamplerScratch(int vocab_size, CpuLevel level = DetectCpuLevel());

  CpuLevel level;                  // equal in bits on each
  std::vector<float> logits;       // [vocab]
  std::vector<int32_t> counts;     // [vocab], all zero between calls
  std::vector<Token> ids;          // candidates
  std::vector<double> weights;     // of the candidates
  std::vector<float> all_weights;  // [vocab]
  std::vector<float> block_sums;   // [vocab / 256, up]
  std::vector<double> bin_sums;    // of weights by size
};

// REQUIRES: logits not empty; params set.
Token Sample(const SampleInput& input, SamplerScratch& scratch);

// Log-softmax of raw logits: l[t] - (max + ln(sum)), sum over the float32 weights of blocks of 256
// (ExpWeights, scale 1), the blocks in order in double. |error| < 2e-6: the logits' distance to the
// largest is rounded once (6e-8 of it, and what is far away weighs little), Exp and the sum of a
// block add a few 1e-7. A probability of zero is reported as kLogprobMin, which JSON can hold.
inline constexpr double kLogprobMin = -9999.0;

// Writes the chosen token's log probability and the `top_count` most likely ones (higher first,
// ties by id) to `top`, which is replaced; it allocates nothing if top has that capacity.
TokenLogprob Logprobs(std::span<const float> logits, Token chosen, int top_count,
                      SamplerScratch& scratch, std::vector<TokenLogprob>& top);

// A uniform double in [0, 1) from a counter: Philox 4x32 with 10 rounds (Salmon et al., "Parallel
// random numbers: as easy as 1, 2, 3", SC 2011), key = seed, counter = (position, stream).
double CounterUniform(uint64_t seed, uint64_t position, uint32_t stream);

// The `count` best ids of `logits`, best first (higher logit, ties by the lower id). Linear time
// beside the sort of the result.
void SelectTop(std::span<const float> logits, size_t count, std::vector<Token>& ids);

}  // namespace cairn
