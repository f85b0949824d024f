#include "model/layers/window_kv.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace cairn {
namespace {

constexpr int64_t kSegmentBlocks = kSegmentPositions / kBlockPositions;

// The rows of one slice that one round takes: up to the next block or tap, so that a ring needs no
// more blocks than a single row does, and is complete where a tap copies it.
int RoundRows(const ForwardSlice& slice, int done) {
  const int64_t position = slice.position + done;
  int64_t rows =
      std::min<int64_t>(slice.row_count - done, kBlockPositions - position % kBlockPositions);
  for (const ForwardTap& tap : slice.taps) {
    if (tap.row >= done) return static_cast<int>(std::min<int64_t>(rows, tap.row + 1 - done));
  }
  return static_cast<int>(rows);
}

class WindowRounds {
 public:
  WindowRounds(const Step& step, const AttentionShape& shape, size_t offset)
      : step_(step),
        shape_(shape),
        offset_(offset),
        ring_blocks_(WindowPart(shape).blocks()),
        ring_bytes_(static_cast<size_t>(ring_blocks_) * shape.layer_bytes()) {
    auto& scratch = step.scratch;
    scratch.window_rows_done.assign(step.slices.size(), 0);
    // The first segment's earlier blocks and the ring; reserved, so that spans into it stay valid.
    scratch.window_blocks.reserve(step.slices.size() * (ring_blocks_ + kSegmentBlocks));
  }

  // The slices of the next round; empty after the last.
  std::span<const AttentionSlice> Next() {
    auto& scratch = step_.scratch;
    scratch.attention_slices.clear();
    scratch.window_blocks.clear();
    for (size_t i = 0; i < step_.slices.size(); ++i) {
      const ForwardSlice& slice = step_.slices[i];
      const int done = scratch.window_rows_done[i];
      if (done < slice.row_count) Add(slice, done);
    }
    return scratch.attention_slices;
  }

  // After the round's rows were attended.
  void Finish() {
    for (size_t i = 0; i < step_.slices.size(); ++i) {
      const ForwardSlice& slice = step_.slices[i];
      int& done = step_.scratch.window_rows_done[i];
      if (done == slice.row_count) continue;
      done += RoundRows(slice, done);
      for (const ForwardTap& tap : slice.taps) {
        if (tap.row != done - 1) continue;
        std::memcpy(tap.state + offset_, slice.state + offset_, ring_bytes_);
      }
    }
  }

 private:
  void Add(const ForwardSlice& slice, int done) {
    auto& blocks = step_.scratch.window_blocks;
    const int64_t position = slice.position + done, last = position / kBlockPositions;
    const int64_t first =
        std::max<int64_t>(0, position - shape_.window + 1) / kSegmentPositions * kSegmentBlocks;
    const size_t begin = blocks.size();
    std::byte* ring = slice.state + offset_;
    for (int64_t b = first; b <= last; ++b)
      blocks.push_back(ring + static_cast<size_t>(b % ring_blocks_) * shape_.layer_bytes());
    if (position % kBlockPositions == 0) std::memset(blocks.back(), 0, shape_.layer_bytes());
    step_.scratch.attention_slices.push_back({.row_begin = slice.row_begin + done,
                                              .row_count = RoundRows(slice, done),
                                              .position = position,
                                              .blocks = std::span(blocks).subspan(begin),
                                              .layer_offset = 0,
                                              .first_block = first});
  }

  const Step& step_;
  const AttentionShape& shape_;
  const size_t offset_;
  const int64_t ring_blocks_;
  const size_t ring_bytes_;
};

}  // namespace

WindowKv WindowPart(const AttentionShape& shape) {
  CHECK(shape.window > 0);
  return {.window = shape.window, .bytes_per_token = shape.layer_bytes() / kBlockPositions};
}

void AttendWindow(const Step& step, const AttentionShape& shape, size_t offset, const float* q,
                  int64_t ldq, const float* k, const float* v, int64_t ldkv, float* out,
                  int64_t ldout) {
  WindowRounds rounds(step, shape, offset);
  for (auto slices = rounds.Next(); !slices.empty(); slices = rounds.Next()) {
    StoreKv(step.ctx, shape, slices, k, ldkv, v, ldkv);
    Attend(step.ctx, shape, slices, q, ldq, out, ldout, step.scratch.attention);
    rounds.Finish();
  }
}

std::vector<std::byte*> RingBlocks(const AttentionShape& shape, const std::byte* ring,
                                   int64_t tokens) {
  const int64_t places = WindowPart(shape).blocks();
  std::vector<std::byte*> blocks;
  for (int64_t b = 0; b * kBlockPositions < tokens; ++b) {
    // Readers of an export only; the type is that of the engine's block lists.
    blocks.push_back(const_cast<std::byte*>(ring) +
                     static_cast<size_t>(b % places) * shape.layer_bytes());
  }
  return blocks;
}

}  // namespace cairn
