// A model whose state and logits are an exact hash of the token prefix. It computes nothing useful,
// but it notices everything: Forward checks that the state it is given is complete and is that of
// the prefix whose KV rows it is given, that no KV row below the position is missing, stale or of
// another history, and that no two slices share a state or write into one block.
//
// Threads: as Model; violations are recorded under a lock.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "model/model.h"

namespace cairn {

struct FakeModelOptions {
  bool hybrid = true;  // false: KV only, restorable at any length
  int vocab_size = 24;
  int64_t context_length = 4096;
  // A logit repeats for tokens that agree in t % logit_period: ties, to test their order. 0 = none.
  int logit_period = 0;
  bool checks = true;        // false: Forward only computes, and allocates nothing
  size_t idle_kv_bytes = 0;  // more of them for each token, which Forward never touches
  // Called first in each Forward; may sleep, block or throw.
  std::function<void(const ForwardBatch&)> on_forward;
};

class FakeModel : public Model {
 public:
  explicit FakeModel(FakeModelOptions options = {});

  const ModelInfo& info() const override { return info_; }
  const StateLayout& layout() const override { return layout_; }
  std::unique_ptr<Workspace> CreateWorkspace(int rows_max, int logit_rows_max,
                                             int threads) const override;
  void Forward(const KernelContext& ctx, const ForwardBatch& batch,
               Workspace& workspace) const override;
  void Logits(const KernelContext& ctx, std::span<const float* const> hidden_rows, float* logits,
              Workspace& workspace) const override;

  // What a perfect engine shows for this prefix.
  static uint64_t HashOf(std::span<const Token> prefix);
  std::vector<float> LogitsOf(std::span<const Token> prefix) const;

  // What went wrong so far, one line each; empty = nothing.
  std::vector<std::string> violations() const;
  std::vector<std::string> TakeViolations();                 // for tests that plant a fault
  int64_t rows_run() const { return rows_run_; }             // tokens that went through Forward
  int64_t mid_block_restores() const { return mid_block_; }  // slices that begin inside a block
  int64_t taps_inside() const { return taps_inside_; }       // taps before the last row of a slice
  int64_t mixed_steps() const { return mixed_steps_; }  // batches with a 1-row and a longer slice
  int batch_max() const { return batch_max_; }          // most slices in one batch

 private:
  struct Row;
  struct State;
  void RunSlice(const ForwardSlice& slice, std::span<const Token> tokens,
                std::vector<uint64_t>& row_hashes) const;
  uint64_t CheckHistory(const ForwardSlice& slice) const;
  void CheckBatch(const ForwardBatch& batch) const;
  Row* RowAt(const ForwardSlice& slice, int64_t position) const;
  void WriteState(std::byte* buffer, uint64_t hash, int64_t position, Token last) const;
  void FillLogits(uint64_t hash, float* logits) const;
  void Violation(std::string what) const;

  FakeModelOptions options_;
  ModelInfo info_;
  StateLayout layout_;
  mutable std::mutex mutex_;
  mutable std::vector<std::string> violations_;
  mutable std::atomic<int64_t> rows_run_{0}, mid_block_{0}, taps_inside_{0}, mixed_steps_{0};
  mutable std::atomic<int> batch_max_{0};
};

}  // namespace cairn
