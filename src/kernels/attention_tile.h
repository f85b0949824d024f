// Between attention.cc (what runs where) and the three builds of attention_impl.h (one per CPU
// level): plain structs and one table of functions per level. Not for other modules.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kv_type.h"

namespace cairn {

inline constexpr int kHeadDimMax = 576;
inline constexpr int kAttentionTileRowsMax =
    96;  // query rows of one tile, a row = (position, head)
inline constexpr int kAttentionPartRowsMax = 12;  // of a tile whose segments are computed apart

// Some query rows of one slice that share one KV head. Rows count (position, query head of the
// group), heads fastest: row r is position `position + r / group`, head r % group of the group.
struct AttentionTile {
  const std::byte* const* blocks;  // of the sequence, from first_block on
  int64_t first_block;
  size_t k_offset, v_offset;  // bytes in a block: K and V of this layer and KV head
  KvType kv_type;
  int head_dim;
  int group;   // query heads per KV head
  int window;  // 0: none
  float scale;
  const float* q;  // row 0, [positions, ldq], heads contiguous
  int64_t ldq;
  float* out;  // row 0, [positions, ldout]
  int64_t ldout;
  int64_t position;
  int row_begin, row_count;
};

// The segment that holds the oldest position the tile's first row sees.
static inline int FirstSegmentOf(const AttentionTile& tile) {
  const int64_t oldest = tile.position + tile.row_begin / tile.group + 1 - tile.window;
  return tile.window > 0 && oldest > 0 ? static_cast<int>(oldest / 256) : 0;
}

// Softmax state of rows after some segments: running maximum, sum and unnormalised output.
struct AttentionState {
  float* max;  // [rows]
  float* sum;  // [rows]
  float* out;  // [rows, head_dim rounded up to 16]
};

// Scratch of one worker, in floats. Strides are constants so that a kernel's broadcasts need one
// address register, and no multiple of 4096 bytes, whose lines would share cache sets.
inline constexpr int kQStride = kHeadDimMax + 16;
inline constexpr int kScoreStride = 256 + 16;
inline constexpr int kRowArray = kAttentionTileRowsMax + 16;  // read 16 at a time from any row

struct TileScratch {
  float* q;          // [rows, kQStride], scaled
  float* scores;     // [rows, kScoreStride], one segment; then its p
  float* panels;     // K of a block or V of a segment as float32, packed for the kernel
  float* part_max;   // [rows] of the segment
  float* part_sum;   // [rows]
  float* old_scale;  // [rows] factors of a merge
  float* part_scale;
  int32_t* visible;  // [rows] keys of the segment up to the row's position
  int32_t* hidden;   // [rows] first of them that lie before the row's window
  AttentionState state;
  size_t floats;  // of everything
};

static inline TileScratch CarveTileScratch(float* base, int head_dim) {
  const size_t out_stride = (head_dim + 15) / 16 * 16;
  TileScratch s;
  float* next = base;
  s.q = next;
  s.scores = s.q + kAttentionTileRowsMax * kQStride;
  s.panels = s.scores + kAttentionTileRowsMax * kScoreStride;
  s.part_max = s.panels + 64 * (out_stride > 256 ? out_stride : 256);
  s.part_sum = s.part_max + kRowArray;
  s.old_scale = s.part_sum + kRowArray;
  s.part_scale = s.old_scale + kRowArray;
  s.visible = reinterpret_cast<int32_t*>(s.part_scale + kRowArray);
  s.hidden = s.visible + kRowArray;
  s.state.max = s.part_scale + 3 * kRowArray;
  s.state.sum = s.state.max + kRowArray;
  s.state.out = s.state.sum + kRowArray;
  s.floats = s.state.out + kAttentionTileRowsMax * out_stride - base;
  return s;
}

// Rows of one slice that lie in one block and one KV head.
struct StoreTile {
  const float* k;  // first row, [rows, ldk]
  int64_t ldk;
  const float* v;
  int64_t ldv;
  std::byte* k_block;  // of the KV head, as attention.h lays it out
  std::byte* v_block;
  KvType kv_type;
  int head_dim;
  int slot_begin, row_count;  // positions in the block
};

struct AttentionKernels {
  // All segments of a tile, to `out`. scratch: TileScratch.floats.
  void (*attend_tile)(const AttentionTile& tile, float* scratch);
  // Segments [segment_begin, segment_end), each alone into its part, part_floats apart (REQUIRES:
  // row_count <= kAttentionPartRowsMax, segment_begin >= FirstSegmentOf(tile)).
  void (*attend_segments)(const AttentionTile& tile, int segment_begin, int segment_end,
                          AttentionState parts, size_t part_floats, float* scratch);
  // Merges the parts of segments [segment_begin, segment_end) into row `row` of `state`; segments
  // behind the row's position are left out.
  void (*merge_parts)(const AttentionTile& tile, int segment_begin, int segment_end,
                      AttentionState parts, size_t part_floats, AttentionState state, int row);
  // Row `row` of `state` divided by its sum, to `out`.
  void (*finish_row)(const AttentionTile& tile, AttentionState state, int row);
  void (*store)(const StoreTile& tile);
};

extern const AttentionKernels kAttentionScalar;
#if defined(__x86_64__)
extern const AttentionKernels kAttentionAvx2;
extern const AttentionKernels kAttentionAvx512;
#endif

}  // namespace cairn
