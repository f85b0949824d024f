// Runs sequences through a Model without an engine: states, KV blocks and chunking in plain sight,
// for golden tests and property tests.
//
// Threads: one runner, one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/thread_pool.h"
#include "base/token.h"
#include "kernels/kernel_context.h"
#include "model/model.h"

namespace cairn::testing {

// State buffer and KV blocks of one sequence. Copying is a snapshot.
class TestSequence {
 public:
  explicit TestSequence(const Model& model);
  TestSequence(const TestSequence& other);
  TestSequence(TestSequence&&) = default;
  TestSequence& operator=(TestSequence&&) = default;

  int64_t position = 0;  // tokens in the state
  std::byte* state() { return state_.data(); }
  const std::byte* state() const { return state_.data(); }
  // Blocks that cover `tokens` tokens, allocated as needed.
  std::span<std::byte* const> Blocks(int64_t tokens);
  std::span<std::byte* const> blocks() const { return block_views_; }
  const float* hidden_row() const;

  // State bytes, hidden row included, and the KV rows of the first `position` tokens, in one
  // string of bytes: equal if and only if the states are.
  std::vector<std::byte> Bytes() const;

 private:
  const Model* model_;
  AlignedBuffer state_;
  std::vector<AlignedBuffer> blocks_;
  std::vector<std::byte*> block_views_;
};

// One piece of a step: the next `tokens` of `sequence`. `tap`: row after which the state is also
// written to tap_state.
struct TestPiece {
  TestSequence* sequence;
  std::span<const Token> tokens;
  std::vector<ForwardTap> taps = {};
};

class ModelRunner {
 public:
  ModelRunner(const Model& model, CpuLevel level, int threads, int rows_max,
              const KernelFaults* faults = nullptr);

  // One Forward over all pieces. Logits of every row, [rows][vocab], rows in the order of pieces.
  std::vector<float> Step(std::span<TestPiece> pieces);
  // Feeds the tokens in chunks of the given sizes (the last size repeats); logits of every row.
  std::vector<float> Feed(TestSequence& sequence, std::span<const Token> tokens,
                          std::span<const int> chunk_sizes);
  // Head applied to the sequence's hidden row.
  std::vector<float> LogitsOfHidden(const TestSequence& sequence);

  const KernelContext& context() const { return context_; }
  Workspace& workspace() { return *workspace_; }
  int rows_max() const { return rows_max_; }

 private:
  const Model& model_;
  int rows_max_;
  ThreadPool pool_;
  KernelContext context_;
  std::unique_ptr<Workspace> workspace_;
};

}  // namespace cairn::testing
