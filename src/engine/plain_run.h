// The yardstick of the law of exactness: one sequence, alone, without cache or scheduler, straight
// through the model. What the engine gives for a prompt must equal it in bits, whatever was cached,
// batched or preempted. Used by `cairn selftest`, benchmarks and tests.
//
// Threads: each object is used by one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/token.h"
#include "kernels/kernel_context.h"
#include "model/model.h"
#include "state/block_pool.h"
#include "state/sequence_state.h"
#include "state/state_pool.h"

namespace cairn {

// 64-bit hash of a row of logits [vocab]: equal bits, equal hash; different bits, different hash
// (up to collisions).
uint64_t LogitsDigest(std::span<const float> logits);

// 64-bit hash of a complete state after `length` tokens: the state buffer's parts and hidden row,
// and KV rows [0, length) of all layers. Bytes of the KV store behind `length` do not count.
// REQUIRES: `model` came from LoadModel.
uint64_t StateDigest(const Model& model, const std::byte* state, std::span<std::byte* const> blocks,
                     int64_t length);

// A sequence that runs in pieces of the caller's choice.
class PlainRun {
 public:
  // rows_max: the longest piece. Errors: kResourceExhausted.
  static Result<std::unique_ptr<PlainRun>> Create(const Model& model, const KernelContext& ctx,
                                                  int rows_max);

  // Runs `tokens` as one piece. Afterwards logits() are those after the last one. REQUIRES:
  // tokens.size() <= rows_max.
  Status Feed(std::span<const Token> tokens);
  // The same, keeping LogitsDigest of every row in `digests` (appended).
  Status FeedWithDigests(std::span<const Token> tokens, std::vector<uint64_t>& digests);
  // In pieces of rows_max.
  Status FeedAll(std::span<const Token> tokens);

  std::span<const float> logits() const {
    return {logits_.data() + last_logit_row_ * vocab_, vocab_};
  }
  int64_t length() const { return state_.length(); }
  uint64_t state_digest() const;
  const SequenceState& state() const { return state_; }

 private:
  PlainRun(const Model& model, const KernelContext& ctx, int rows_max, SequenceState state,
           std::unique_ptr<BlockPool> blocks, std::unique_ptr<StatePool> states);
  Status Run(std::span<const Token> tokens, std::span<const int> logit_rows);

  const Model& model_;
  const KernelContext ctx_;
  const int rows_max_;
  const size_t vocab_;
  std::unique_ptr<BlockPool> blocks_;  // outlives state_
  std::unique_ptr<StatePool> states_;
  SequenceState state_;
  std::unique_ptr<Workspace> workspace_;
  std::vector<float> logits_;
  size_t last_logit_row_ = 0;
};

}  // namespace cairn
