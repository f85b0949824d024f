// One request as the engine sees it: token ids in, token ids out. Text, templates and stop strings
// are the handler's business. Threads: built by one thread, then handed over by move.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/token.h"

namespace cairn {

// Defaults are greedy. Order of the processors and their formulas: sampler.h.
struct SamplingParams {
  float temperature = 0.0f;  // 0 = argmax, ties by the lower token id
  float top_p = 1.0f;
  int top_k = 0;  // 0 = all
  float min_p = 0.0f;
  float xtc_probability = 0.0f;
  float xtc_threshold = 0.1f;       // as in mlx-lm's and llama.cpp's servers
  float repetition_penalty = 1.0f;  // over the last repetition_context_size tokens
  int repetition_context_size = 20;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  std::vector<std::pair<Token, float>> logit_bias = {};
  uint64_t seed = 0;  // the handler draws one where the client gave none
};

struct Request {
  std::vector<Token> prompt;  // not empty; ids in [0, vocab)
  int64_t system_end =
      0;  // positions [0, system_end) are the system part (eviction lru-type); 0 for raw prompts
  int64_t tail_begin =
      0;             // template tail (generation prompt) begins here; prompt.size() for raw prompts
  bool raw = false;  // a raw prompt (completions), not a rendered chat
  int64_t max_tokens = 0;  // >= 0; clamped to the rest of the context
  int64_t min_tokens = 0;  // end tokens are masked before
  bool ignore_eos = false;
  std::vector<Token> stop_token_ids;  // besides the model's end-of-generation tokens
  bool has_stop_strings = false;  // then the finish checkpoint waits for the handler's End(kept)
  SamplingParams sampling;
  std::optional<int> logprobs;   // number of top alternatives, 0..20; nullopt = none wanted
  bool prompt_logprobs = false;  // echo with logprobs: runs from token 0
  bool cache_prompt = true;      // false: neither reads nor writes
  std::string cache_salt;        // another salt is another root
  int priority = 0;              // smaller is sooner
  std::string share_key;         // whose fair share it uses up: an API key; empty: the cache salt
  double deadline_ms = 0;        // from submission; 0 = none
  std::string id;                // for /slots and observers
  std::string log_id;            // in the log lines about it; empty: id
};

}  // namespace cairn
