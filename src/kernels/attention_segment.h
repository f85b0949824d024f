// What the passes over one segment share, whatever the KV type; part of attention_impl.h.
#pragma once

#include "kernels/attention_products.h"
#include "kernels/vector_math.h"

namespace cairn {
namespace {

// One segment of one tile: which rows see how much of it, and its blocks.
struct SegmentRows {
  // `segment_end`: the segments after this one and before it come next and are prefetched.
  SegmentRows(const AttentionTile& tile, const TileScratch& scratch, int segment, int segment_end) {
    const int64_t base = static_cast<int64_t>(segment) * kSegment;
    first_row = tile.row_count;
    for (int r = tile.row_count - 1; r >= 0; --r) {
      const int64_t sees = tile.position + (tile.row_begin + r) / tile.group + 1 - base;
      if (sees <= 0) break;
      const int32_t visible_keys = sees < kSegment ? static_cast<int32_t>(sees) : kSegment;
      const int64_t left = tile.window > 0 ? sees - tile.window : 0;
      scratch.visible[r] = visible_keys;
      scratch.hidden[r] = left <= 0             ? 0
                          : left < visible_keys ? static_cast<int32_t>(left)
                                                : visible_keys;
      first_row = r;
    }
    visible = scratch.visible[tile.row_count - 1];
    blocks = tile.blocks + (segment * kSegmentBlocks - tile.first_block);
    block_count = (visible + kBlock - 1) / kBlock;
    if (segment + 1 < segment_end) {
      const int64_t last = tile.position + (tile.row_begin + tile.row_count - 1) / tile.group;
      const int64_t after = last / kBlock + 1 - (segment + 1) * kSegmentBlocks;
      next_block_count = after < kSegmentBlocks ? static_cast<int>(after) : kSegmentBlocks;
    }
  }

  int first_row;                   // rows before it do not see the segment
  int visible;                     // keys of the segment the last row sees
  const std::byte* const* blocks;  // [block_count + next_block_count], this segment's and next
  int block_count;
  int next_block_count = 0;
};

// A row that sees no key of the segment any more: p is zero, and a merge changes nothing.
inline void HideRow(const TileScratch& scratch, int r) {
  float* s = scratch.scores + r * kScoreStride;
  for (int i = 0; i < scratch.visible[r]; i += 16) Store(s + i, Zero());
  scratch.part_max[r] = -0x1.fffffep+127f;
  scratch.part_sum[r] = 0;
}

// scores -> p of one row, zero up to a multiple of 16 keys, with its maximum and sum.
inline void SoftmaxRow(const TileScratch& scratch, int r) {
  float* s = scratch.scores + r * kScoreStride;
  const int visible = scratch.visible[r], whole = visible / 16 * 16, tail = visible - whole;
  const Mask16 in_tail = FirstLanes(tail);
  const int hidden = scratch.hidden[r];
  if (hidden == visible) return HideRow(scratch, r);
  for (int i = 0; i < hidden; i += 16)
    StoreN(s + i, Set(-__builtin_inff()), Smaller(16, hidden - i));  // their p is +0
  F32x16 lanes = Set(-__builtin_inff());
  for (int i = 0; i < whole; i += 16) lanes = Max(Load(s + i), lanes);
  if (tail > 0) lanes = Max(Select(in_tail, Load(s + whole), Set(-__builtin_inff())), lanes);
  const float max = ReduceMax(lanes);
  F32x16 sum = Zero();
  for (int i = 0; i < whole; i += 16) {
    const F32x16 p = Exp(Sub(Load(s + i), Set(max)));
    Store(s + i, p);
    sum = Add(sum, p);
  }
  if (tail > 0) {
    const F32x16 p = Select(in_tail, Exp(Sub(Load(s + whole), Set(max))), Zero());
    Store(s + whole, p);
    sum = Add(sum, p);
  }
  scratch.part_max[r] = max;
  scratch.part_sum[r] = ReduceAdd(sum);
}

// Maximum and sum of the segment become those of the state.
inline void StartState(const TileScratch& scratch, AttentionState state, int row_begin,
                       int row_end) {
  for (int r = row_begin; r < row_end; ++r) {
    state.max[r] = scratch.part_max[r];
    state.sum[r] = scratch.part_sum[r];
  }
}

// Maximum and sum of the segment go into the state; the factors of both outputs are left in
// old_scale and part_scale. Sixteen rows at once; lanes past the last row are of no use and no
// harm.
inline void MergeState(const TileScratch& scratch, AttentionState state, int row_begin,
                       int row_end) {
  for (int r = row_begin; r < row_end; r += 16) {
    const F32x16 old_max = Load(state.max + r), part_max = Load(scratch.part_max + r);
    const F32x16 max = Max(old_max, part_max);
    const F32x16 a = Exp(Sub(old_max, max)), b = Exp(Sub(part_max, max));
    Store(state.max + r, max);
    Store(state.sum + r, Fma(Load(state.sum + r), a, Mul(Load(scratch.part_sum + r), b)));
    Store(scratch.old_scale + r, a);
    Store(scratch.part_scale + r, b);
  }
}

}  // namespace
}  // namespace cairn
