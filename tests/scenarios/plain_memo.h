// The plain cold run, remembered by prefix: each sequence of tokens runs alone, cold, without
// cache, taps or engine, in pieces that end at every multiple of 64 and at its own end. What was
// computed for a prefix is kept, so cases that share prompts share the work; a later piece starts
// from a whole copy of the state and KV blocks that the plain run had at the multiple of 64.
//
// Threads: one.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/token.h"
#include "scenarios/watched_model.h"
#include "support/model_runner.h"

namespace cairn::law {

class PlainMemo {
 public:
  // `model` is the real one; `faults` may be null. Both outlive the memo.
  PlainMemo(const Model& model, CpuLevel level, const KernelFaults* faults);

  // Logits [vocab] of the row of the last token of `prefix`; valid until Clear.
  std::span<const float> Logits(std::span<const Token> prefix);
  // StateDigest after `prefix`.
  uint64_t State(std::span<const Token> prefix);
  void Clear();
  int64_t rows_run() const { return rows_run_; }

 private:
  using Sequence = cairn::testing::TestSequence;
  static uint64_t KeyOf(std::span<const Token> prefix);
  const Sequence& Snapshot(std::span<const Token> prefix);
  void RunPiece(std::span<const Token> prefix);

  const Model& real_;
  const WatchedModel model_;
  cairn::testing::ModelRunner runner_;
  const Sequence empty_;
  // By KeyOf(prefix).
  std::unordered_map<uint64_t, std::vector<float>> logits_;
  std::unordered_map<uint64_t, uint64_t> states_;
  std::unordered_map<uint64_t, Sequence> snapshots_;  // after multiples of 64
  int64_t rows_run_ = 0;
};

}  // namespace cairn::law
