#include "support/model_runner.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/check.h"
#include "kernels/attention.h"

namespace cairn::testing {

TestSequence::TestSequence(const Model& model)
    : model_(&model), state_(model.layout().buffer_bytes()) {}

TestSequence::TestSequence(const TestSequence& other)
    : position(other.position), model_(other.model_), state_(other.state_.size()) {
  std::memcpy(state_.data(), other.state_.data(), state_.size());
  for (const AlignedBuffer& block : other.blocks_) {
    blocks_.emplace_back(block.size());
    std::memcpy(blocks_.back().data(), block.data(), block.size());
    block_views_.push_back(blocks_.back().data());
  }
}

std::span<std::byte* const> TestSequence::Blocks(int64_t tokens) {
  const size_t block_bytes = model_->layout().block_bytes();
  if (block_bytes == 0) return {};
  const size_t count = (tokens + kBlockPositions - 1) / kBlockPositions;
  while (blocks_.size() < count) {
    blocks_.emplace_back(block_bytes);
    block_views_.push_back(blocks_.back().data());
  }
  return std::span(block_views_).first(count);
}

const float* TestSequence::hidden_row() const {
  return reinterpret_cast<const float*>(state_.data() + model_->layout().hidden_offset());
}

std::vector<std::byte> TestSequence::Bytes() const {
  std::vector<std::byte> out(state_.data(), state_.data() + state_.size());
  // Rows past `position` of the last block are written later or never; unused rows are zero in
  // this harness, where nothing writes ahead.
  for (const AlignedBuffer& block : blocks_) {
    out.insert(out.end(), block.data(), block.data() + block.size());
  }
  return out;
}

ModelRunner::ModelRunner(const Model& model, CpuLevel level, int threads, int rows_max,
                         const KernelFaults* faults)
    : model_(model),
      rows_max_(rows_max),
      pool_(threads),
      context_{level, &pool_, faults},
      workspace_(model.CreateWorkspace(rows_max, rows_max, threads)) {}

std::vector<float> ModelRunner::Step(std::span<TestPiece> pieces) {
  std::vector<Token> tokens;
  std::vector<ForwardSlice> slices;
  for (TestPiece& piece : pieces) {
    const int64_t position = piece.sequence->position, count = piece.tokens.size();
    slices.push_back({.row_begin = static_cast<int>(tokens.size()),
                      .row_count = static_cast<int>(count),
                      .position = position,
                      .blocks = piece.sequence->Blocks(position + count),
                      .state = piece.sequence->state(),
                      .taps = piece.taps});
    tokens.insert(tokens.end(), piece.tokens.begin(), piece.tokens.end());
    piece.sequence->position += count;
  }
  std::vector<int> rows(tokens.size());
  std::iota(rows.begin(), rows.end(), 0);
  std::vector<float> logits(tokens.size() * model_.info().vocab_size);
  model_.Forward(context_,
                 {.tokens = tokens, .slices = slices, .logit_rows = rows, .logits = logits.data()},
                 *workspace_);
  return logits;
}

std::vector<float> ModelRunner::Feed(TestSequence& sequence, std::span<const Token> tokens,
                                     std::span<const int> chunk_sizes) {
  std::vector<float> logits;
  while (!tokens.empty()) {
    CHECK(!chunk_sizes.empty() && chunk_sizes[0] >= 1);
    const size_t count = std::min<size_t>(tokens.size(), chunk_sizes[0]);
    TestPiece piece[] = {{&sequence, tokens.first(count)}};
    const std::vector<float> rows = Step(piece);
    logits.insert(logits.end(), rows.begin(), rows.end());
    tokens = tokens.subspan(count);
    if (chunk_sizes.size() > 1) chunk_sizes = chunk_sizes.subspan(1);
  }
  return logits;
}

std::vector<float> ModelRunner::LogitsOfHidden(const TestSequence& sequence) {
  std::vector<float> logits(model_.info().vocab_size);
  const float* rows[] = {sequence.hidden_row()};
  model_.Logits(context_, rows, logits.data(), *workspace_);
  return logits;
}

}  // namespace cairn::testing
