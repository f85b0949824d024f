// Attention over one tile of rows, written once on simd16.h and built per CPU level. attention.h
// states the order of operations; here is how they are blocked.
//
// With more than 24 rows K (a block at a time) and V (a segment at a time, some columns) are
// converted to float32 into panels that all rows use; up to there (decode, and the pieces of a
// prompt beside it) each register tile of 6 rows converts them for itself: that is cheaper than to
// write panels, which do not fit into the L1 cache. A q8_0 store has passes of its own
// (attention_int8.h).
#pragma once

#include "kernels/attention_int8.h"
#include "kernels/attention_segment.h"

namespace cairn {
namespace {

constexpr int kDirectRowTiles = 4;

// One segment of one tile.
template <typename Kv>
class SegmentPass {
 public:
  SegmentPass(const AttentionTile& tile, const TileScratch& scratch, int segment, int segment_end,
              AttentionState state)
      : tile_(tile),
        scratch_(scratch),
        state_(state),
        rows_(tile, scratch, segment, segment_end),
        out_stride_((tile.head_dim + 15) / 16 * 16) {
    row_tiles_ = RowTiles(tile.row_count - rows_.first_row);
    packed_ = row_tiles_ > kDirectRowTiles || tile.head_dim % 16 != 0;
    vectors_max_ = packed_ ? kTileVectors : MaxVectors(tile.row_count - rows_.first_row);
  }

  // The first segment of a state starts it, later ones are merged into it.
  void Start() {
    Scores();
    for (int r = rows_.first_row; r < tile_.row_count; ++r) SoftmaxRow(scratch_, r);
    StartState(scratch_, state_, rows_.first_row, tile_.row_count);
    Outputs(nullptr, nullptr);
  }

  void Merge() {
    Scores();
    for (int r = rows_.first_row; r < tile_.row_count; ++r) SoftmaxRow(scratch_, r);
    MergeState(scratch_, state_, rows_.first_row, tile_.row_count);
    Outputs(scratch_.old_scale, scratch_.part_scale);
  }

 private:
  const Kv* KeyBlock(int i) const {
    return reinterpret_cast<const Kv*>(rows_.blocks[i] + tile_.k_offset);
  }
  const Kv* ValueBlock(int i) const {
    return reinterpret_cast<const Kv*>(rows_.blocks[i] + tile_.v_offset);
  }

  int64_t BlockBytes() const { return sizeof(Kv) * kBlock * tile_.head_dim; }

  // Meanwhile the segment's V is prefetched.
  void Scores() {
    AheadCursor ahead(rows_.blocks, rows_.block_count, tile_.v_offset, BlockBytes(),
                      rows_.block_count * row_tiles_ * kBlock / (16 * vectors_max_));
    for (int i = 0; i < rows_.block_count; ++i) {
      if (packed_) {
        PackKeys(KeyBlock(i));
        for (int n = 0; n < kBlock; n += kPanelWidth) {
          ScoreRowTiles<kTileVectors, 1>(scratch_.panels + n * tile_.head_dim, kPanelWidth,
                                         i * kBlock + n, ahead);
        }
      } else {
        WithRows(tile_.row_count - rows_.first_row, [&](auto rows) {
          constexpr int N = MaxVectors(decltype(rows)::value);
          for (int n = 0; n < kBlock; n += 16 * N)
            ScoreRowTiles<N, StreamLines(N)>(KeyBlock(i) + n, kBlock, i * kBlock + n, ahead);
        });
      }
    }
  }

  // Scores of all rows that see key `first_key` of the segment or later ones, for 16 N keys.
  template <int N, int kLines, typename B>
  void ScoreRowTiles(const B* k, int64_t ldk, int first_key, AheadCursor& ahead) {
    ForRowTiles(rows_.first_row, tile_.row_count, [&](int first, int count) {
      const Ahead next = ahead.Next(tile_.head_dim, kLines, k);
      if (scratch_.visible[first + count - 1] <= first_key) return;
      WithRows(count, [&](auto rows) {
        constexpr int R = decltype(rows)::value;
        if constexpr (N <= MaxVectors(R)) {
          ScoreTile<R, N, kLines>(scratch_.q + first * kQStride, k, ldk, tile_.head_dim, next,
                                  scratch_.scores + first * kScoreStride + first_key);
        }
      });
    });
  }

  // Lines to prefetch per term of a product that itself reads 16 n elements of the store per term.
  static constexpr int StreamLines(int n) {
    const int lines = static_cast<int>(16 * n * sizeof(Kv) / 64);
    return lines > 1 ? lines : 1;
  }

  // Vectors of a register tile that few rows leave room for (and need, to hide the latency of fma).
  static constexpr int MaxVectors(int rows) {
    return rows == 1 || kTileVectors == 4 ? 4 : rows <= 3 ? 2 : kTileVectors;
  }

  // 4, 2 or 1 vectors, at most `vectors_max_` and what is left of the columns.
  int VectorsAt(int column) const {
    const int vectors = Smaller(vectors_max_, (out_stride_ - column) / 16);
    return vectors >= 4 ? 4 : vectors >= 2 ? 2 : 1;
  }

  // Meanwhile the next segment's K is prefetched.
  void Outputs(const float* old_scale, const float* part_scale) {
    AheadCursor ahead(rows_.blocks + kSegmentBlocks, rows_.next_block_count, tile_.k_offset,
                      BlockBytes(), row_tiles_ * out_stride_ / (16 * vectors_max_));
    for (int column = 0; column < out_stride_;) {
      if (packed_ && column % kBlock == 0) PackValues(column);
      const int vectors = VectorsAt(column);
      if (vectors == 4) {
        OutputColumns<4>(column, old_scale, part_scale, ahead);
      } else if (vectors == 2) {
        OutputColumns<2>(column, old_scale, part_scale, ahead);
      } else {
        OutputColumns<1>(column, old_scale, part_scale, ahead);
      }
      column += 16 * vectors;
    }
  }

  // N vectors of columns, all rows.
  template <int N>
  void OutputColumns(int column, const float* old_scale, const float* part_scale,
                     AheadCursor& ahead) {
    if (packed_) {
      Values<float> v;
      for (int i = 0; i < kSegmentBlocks; ++i)
        v.block[i] = scratch_.panels + column % kBlock * kSegment + i * kBlock * 16 * N;
      v.ld = 16 * N;
      OutputRowTiles<N, 1>(v, column, old_scale, part_scale, ahead);
    } else {
      Values<Kv> v;
      for (int i = 0; i < rows_.block_count; ++i) v.block[i] = ValueBlock(i) + column;
      v.ld = tile_.head_dim;
      OutputRowTiles<N, StreamLines(N)>(v, column, old_scale, part_scale, ahead);
    }
  }

  template <int N, int kLines, typename B>
  void OutputRowTiles(const Values<B>& v, int column, const float* old_scale,
                      const float* part_scale, AheadCursor& ahead) {
    ForRowTiles(rows_.first_row, tile_.row_count, [&](int first, int count) {
      const bool merge = old_scale != nullptr;
      const OutputRows rows{.p = scratch_.scores + first * kScoreStride,
                            .visible = scratch_.visible + first,
                            .out = state_.out + first * out_stride_ + column,
                            .out_stride = out_stride_,
                            .old_scale = merge ? old_scale + first : nullptr,
                            .part_scale = merge ? part_scale + first : nullptr};
      const Ahead next = ahead.Next(scratch_.visible[first], kLines, v.block[0]);
      WithRows(count, [&](auto r) {
        constexpr int R = decltype(r)::value;
        if constexpr (N <= MaxVectors(R)) OutputTile<R, N, kLines>(rows, v, next);
      });
    });
  }

  // The block's K in float32, [kBlock / kPanelWidth][head_dim][kPanelWidth].
  void PackKeys(const Kv* k) {
    const int panel_floats = tile_.head_dim * kPanelWidth;
    for (int d = 0; d < tile_.head_dim; ++d) {
      float* to = scratch_.panels + d * kPanelWidth;
#pragma GCC unroll 4
      for (int n = 0; n < kBlock; n += 16) {
        Store(to + n / kPanelWidth * panel_floats + n % kPanelWidth, LoadKv(k + d * kBlock + n));
      }
    }
  }

  // Up to 64 columns of the segment's V in float32, zero past head_dim: panels of 16 VectorsAt()
  // columns, [rows_.visible][16 VectorsAt()], each kSegment floats per column behind the one
  // before.
  void PackValues(int column) {
    const int columns = Smaller(kBlock, out_stride_ - column);
    int offset[4], stride[4];
    for (int c = 0; c < columns;) {
      const int vectors = VectorsAt(column + c);
      for (int i = 0; i < vectors; ++i) {
        offset[c / 16 + i] = c * kSegment + 16 * i;
        stride[c / 16 + i] = 16 * vectors;
      }
      c += 16 * vectors;
    }
    for (int key = 0; key < rows_.visible; ++key) {
      const Kv* from = ValueBlock(key / kBlock) + (key % kBlock) * tile_.head_dim + column;
      for (int n = 0; n < columns / 16; ++n) {
        const int left = tile_.head_dim - column - 16 * n;
        Store(scratch_.panels + offset[n] + key * stride[n],
              left >= 16 ? LoadKv(from + 16 * n) : LoadKvN(from + 16 * n, left));
      }
    }
  }

  const AttentionTile& tile_;
  const TileScratch& scratch_;
  AttentionState state_;
  SegmentRows rows_;
  int out_stride_;
  int row_tiles_;
  bool packed_;
  int vectors_max_;
};

// q of all rows, times scale.
inline void LoadQ(const AttentionTile& tile, const TileScratch& scratch) {
  for (int r = 0; r < tile.row_count; ++r) {
    const int row = tile.row_begin + r;
    const float* from = tile.q + (row / tile.group) * tile.ldq + (row % tile.group) * tile.head_dim;
    float* to = scratch.q + r * kQStride;
    for (int d = 0; d < tile.head_dim; d += 16) {
      const int n = Smaller(16, tile.head_dim - d);
      StoreN(to + d, Mul(LoadN(from + d, n), Set(tile.scale)), n);
    }
  }
}

// The state of a row before any segment of a window.
inline void StartEmptyRow(AttentionState state, int64_t out_stride, int64_t r) {
  state.max[r] = -0x1.fffffep+127f;
  state.sum[r] = 0;
  for (int64_t d = 0; d < out_stride; d += 16) Store(state.out + r * out_stride + d, Zero());
}

template <typename Pass>
void RunTile(const AttentionTile& tile, const TileScratch& scratch) {
  const int64_t last = tile.position + (tile.row_begin + tile.row_count - 1) / tile.group;
  const int end = static_cast<int>(last / kSegment) + 1;
  if (tile.window > 0) {
    const int64_t out_stride = (tile.head_dim + 15) / 16 * 16;
    for (int r = 0; r < tile.row_count; ++r) StartEmptyRow(scratch.state, out_stride, r);
    for (int segment = FirstSegmentOf(tile); segment < end; ++segment)
      Pass(tile, scratch, segment, end, scratch.state).Merge();
    return;
  }
  Pass(tile, scratch, 0, end, scratch.state).Start();
  for (int segment = 1; segment < end; ++segment)
    Pass(tile, scratch, segment, end, scratch.state).Merge();
}

// fn(Type<Pass>{}) with the pass of the tile's KV type.
template <typename Pass>
struct Type {
  using type = Pass;
};
template <typename Fn>
CAIRN_SIMD void WithPass(KvType kv_type, Fn fn) {
  switch (kv_type) {
    case KvType::kF32:
      return fn(Type<SegmentPass<float>>{});
    case KvType::kF16:
      return fn(Type<SegmentPass<uint16_t>>{});
    case KvType::kQ8_0:
      return fn(Type<Int8SegmentPass>{});
  }
}

inline void LoadRows(const AttentionTile& tile, const TileScratch& scratch) {
  if (tile.kv_type == KvType::kQ8_0) {
    LoadInt8Q(tile, scratch);
  } else {
    LoadQ(tile, scratch);
  }
}

inline void FinishRow(const AttentionTile& tile, AttentionState state, int r) {
  const int row = tile.row_begin + r;
  const float* from = state.out + r * ((tile.head_dim + 15) / 16 * 16);
  float* to = tile.out + (row / tile.group) * tile.ldout + (row % tile.group) * tile.head_dim;
  const F32x16 sum = Set(state.sum[r]), inf = Set(__builtin_inff()), nan = Set(__builtin_nanf(""));
  for (int d = 0; d < tile.head_dim; d += 16) {
    const F32x16 x = Div(Load(from + d), sum);
    // One NaN for all: its payload would depend on how the compiler ordered operands.
    const F32x16 y = Select(Less(x, inf), x, Select(Less(Neg(inf), x), x, nan));
    StoreN(to + d, y, Smaller(16, tile.head_dim - d));
  }
}

inline void AttendTile(const AttentionTile& tile, float* scratch_floats) {
  const TileScratch scratch = CarveTileScratch(scratch_floats, tile.head_dim);
  LoadRows(tile, scratch);
  WithPass(tile.kv_type, [&](auto pass) { RunTile<typename decltype(pass)::type>(tile, scratch); });
  for (int r = 0; r < tile.row_count; ++r) FinishRow(tile, scratch.state, r);
}

inline AttentionState PartAt(AttentionState parts, size_t offset) {
  return {parts.max + offset, parts.sum + offset, parts.out + offset};
}

inline void AttendSegments(const AttentionTile& tile, int segment_begin, int segment_end,
                           AttentionState parts, size_t part_floats, float* scratch_floats) {
  const TileScratch scratch = CarveTileScratch(scratch_floats, tile.head_dim);
  LoadRows(tile, scratch);
  for (int segment = segment_begin; segment < segment_end; ++segment) {
    const AttentionState part = PartAt(parts, (segment - segment_begin) * part_floats);
    WithPass(tile.kv_type, [&](auto pass) {
      typename decltype(pass)::type(tile, scratch, segment, segment_end, part).Start();
    });
  }
}

// The same formula as MergeState and the output tiles.
inline void MergePart(AttentionState state, AttentionState part, int64_t out_stride, int r) {
  const F32x16 old_max = Set(state.max[r]), part_max = Set(part.max[r]);
  const F32x16 max = Max(old_max, part_max);
  const F32x16 a = Exp(Sub(old_max, max)), b = Exp(Sub(part_max, max));
  StoreN(state.max + r, max, 1);
  StoreN(state.sum + r, Fma(Set(state.sum[r]), a, Mul(Set(part.sum[r]), b)), 1);
  float* out = state.out + r * out_stride;
  const float* add = part.out + r * out_stride;
  for (int d = 0; d < out_stride; d += 16)
    Store(out + d, Fma(Load(out + d), a, Mul(Load(add + d), b)));
}

inline void MergeParts(const AttentionTile& tile, int segment_begin, int segment_end,
                       AttentionState parts, size_t part_floats, AttentionState state, int r) {
  const int64_t out_stride = (tile.head_dim + 15) / 16 * 16;
  const int64_t last = (tile.position + (tile.row_begin + r) / tile.group) / kSegment;
  const int first = FirstSegmentOf(tile);
  for (int segment = segment_begin; segment < segment_end && segment <= last; ++segment) {
    const AttentionState part = PartAt(parts, (segment - segment_begin) * part_floats);
    if (segment == first && tile.window > 0) StartEmptyRow(state, out_stride, r);
    if (segment > first || tile.window > 0) {
      MergePart(state, part, out_stride, r);
      continue;
    }
    state.max[r] = part.max[r];
    state.sum[r] = part.sum[r];
    for (int d = 0; d < out_stride; d += 16)
      Store(state.out + r * out_stride + d, Load(part.out + r * out_stride + d));
  }
}

// K goes in 16 x 16 tiles: converted along head_dim, written along positions.
template <typename Kv>
void StoreRows(const StoreTile& tile) {
  Kv* k_block = reinterpret_cast<Kv*>(tile.k_block);
  Kv* v_block = reinterpret_cast<Kv*>(tile.v_block) + tile.slot_begin * tile.head_dim;
  Kv square[16][16];
  for (int first = 0; first < tile.row_count; first += 16) {
    const int rows = Smaller(16, tile.row_count - first);
    for (int d = 0; d < tile.head_dim; d += 16) {
      const int dims = Smaller(16, tile.head_dim - d);
      for (int r = 0; r < rows; ++r) {
        StoreKvN(square[r], LoadN(tile.k + (first + r) * tile.ldk + d, dims), 16);
        StoreKvN(v_block + (first + r) * tile.head_dim + d,
                 LoadN(tile.v + (first + r) * tile.ldv + d, dims), dims);
      }
      for (int i = 0; i < dims; ++i) {
        Kv* to = k_block + (d + i) * kBlock + tile.slot_begin + first;
        for (int r = 0; r < rows; ++r) to[r] = square[r][i];
      }
    }
  }
}

inline void StoreKvRows(const StoreTile& tile) {
  switch (tile.kv_type) {
    case KvType::kF32:
      return StoreRows<float>(tile);
    case KvType::kF16:
      return StoreRows<uint16_t>(tile);
    case KvType::kQ8_0:
      return StoreInt8Rows(tile);
  }
}

}  // namespace
}  // namespace cairn
