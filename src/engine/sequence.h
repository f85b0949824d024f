// One request being generated, as the engine thread sees it.
//
// Owns: its tokens, its live state, its hold on the prefix tree. Threads: the engine thread, except
// that the thread that submits builds it. Invariants: state length <= tokens.size(); tokens =
// prompt, then generated; the last sampled token is not in the state.
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cache/marks.h"
#include "cache/prefix_tree.h"
#include "engine/engine.h"
#include "engine/request.h"
#include "engine/scheduler.h"
#include "engine/token_stream.h"
#include "state/sequence_state.h"

namespace cairn {

using Clock = std::chrono::steady_clock;

// A mark that this step passes: its tap's buffer, published in Commit.
struct PendingMark {
  Mark mark;
  StateBuffer buffer;
};

// What this step runs and found for one sequence; cleared by each step.
struct StepWork {
  int rows = 0;                    // rows in Forward; 0 = none
  int logit_begin = 0;             // its first logit row
  int logit_count = 0;             // prompt rows first, the row to sample from last
  int64_t prompt_logit_begin = 0;  // position of the token that the first prompt row predicts
  int prompt_logit_count = 0;
  bool samples = false;  // the last logit row gives the next token
  Token sampled = 0;
  std::optional<TokenLogprob> logprob;
  std::vector<TokenLogprob> top;
  std::vector<PromptLogprobsEvent> prompt_logprobs;
  std::optional<Token> emitted;  // the sampled token, if it is part of the answer
  bool prefilled = false;        // send a ProgressEvent
};

struct Sequence {
  // `stream` and `request` as submitted; vectors get their final size at admission.
  Sequence(uint64_t id, Request request, std::shared_ptr<TokenStream> stream, int64_t max_tokens);
  // Tells an error if no end was told: no reader waits for an end that was lost on the way.
  ~Sequence();
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;

  const uint64_t id;
  const Request request;
  const std::shared_ptr<TokenStream> stream;
  int64_t max_tokens;        // clamped to the rest of the context, and to what fits
  const uint64_t share_key;  // hash of the request's share_key or cache_salt

  std::vector<Token> tokens;           // prompt and generated
  std::optional<SequenceState> state;  // while it has a slot, or is closing
  Lease lease;                         // empty where the cache is neither read nor written
  std::optional<ReuseReport> reuse;    // fixed by the first admission
  std::vector<Mark> marks;             // of the prompt, ascending
  size_t next_mark = 0;                // marks before it lie behind the state
  int64_t prompt_logprobs_sent = 0;    // positions 1..k
  int64_t progress_sent = 0;
  int64_t tokens_sent = 0;  // as TokenEvent
  int priority;  // the request's, or that of a more urgent one that waits for this one's prefix
  // Rows of the least served key that waits for this one's prefix, as FairShare counts them.
  uint64_t lent_rows = std::numeric_limits<uint64_t>::max();
  FairShare* share = nullptr;     // where it is counted, once it is in the engine
  uint64_t passed_over_turn = 0;  // Admit looked at it in that turn
  uint64_t led_turn = 0;          // the turn of its last whole piece of a prompt
  // Waits for sequence `waits_for` to compute the first `waits_until` tokens that both share.
  std::optional<uint64_t> waits_for;
  int64_t waits_until = 0;
  bool waited_in_vain = false;  // the checkpoint that it waited for was not there
  std::vector<PendingMark> pending;
  StepWork work;
  std::optional<FinishReason> finished;  // set by Commit, acted on by Emit
  std::optional<Token> stop_token;
  std::vector<Token> masked_before_min_tokens, masked_always;

  Clock::time_point submitted = Clock::now();
  Clock::time_point admitted, first_token, last_token;
  bool has_first_token = false;
  Clock::time_point closing_until;

  int64_t prompt_size() const { return static_cast<int64_t>(request.prompt.size()); }
  int64_t generated() const { return static_cast<int64_t>(tokens.size()) - prompt_size(); }
  int64_t position() const { return state ? state->length() : 0; }
  int64_t missing() const { return static_cast<int64_t>(tokens.size()) - position(); }
  bool prefilling() const { return position() < prompt_size(); }
  bool wants_token() const { return max_tokens > 0; }
  bool ends_by(Token token, std::span<const Token> end_tokens) const;
  std::span<const Token> masked() const {
    return generated() < request.min_tokens ? masked_before_min_tokens : masked_always;
  }
  std::optional<Clock::time_point> deadline() const;
  PathType path_type(int64_t position) const {
    return PathTypeAt(position, request.system_end, request.tail_begin, request.raw);
  }
  EndEvent MakeEnd(FinishReason reason, Status error) const;
  void TellEnd(EndEvent end) noexcept;  // only the first one counts
  void TellError(const Status& error) noexcept;

 private:
  bool end_told_ = false;
};

}  // namespace cairn
