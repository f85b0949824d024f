// Attention over one tile of rows, written once on simd16.h and built per CPU level. attention.h
// states the order of operations; here is how they are blocked.
//
// With more than 6 rows K (a block at a time) and V (a segment at a time, some columns) are
// converted to float32 into panels that all rows use; up to 6 rows (decode) they are converted in
// registers.
#pragma once

#include "kernels/attention_products.h"
#include "kernels/vector_math.h"

namespace cairn {
namespace {

// One segment of one tile.
template <typename Kv>
class SegmentPass {
 public:
  // `segment_end`: the segments after this one and before it come next and are prefetched.
  SegmentPass(const AttentionTile& tile, const TileScratch& scratch, int segment, int segment_end,
              AttentionState state)
      : tile_(tile), scratch_(scratch), state_(state), out_stride_((tile.head_dim + 15) / 16 * 16) {
    const int64_t base = static_cast<int64_t>(segment) * kSegment;
    first_row_ = tile.row_count;
    for (int r = tile.row_count - 1; r >= 0; --r) {
      const int64_t sees = tile.position + (tile.row_begin + r) / tile.group + 1 - base;
      if (sees <= 0) break;
      scratch.visible[r] = sees < kSegment ? static_cast<int32_t>(sees) : kSegment;
      first_row_ = r;
    }
    visible_ = scratch.visible[tile.row_count - 1];
    blocks_ = tile.blocks + segment * kSegmentBlocks;
    block_count_ = (visible_ + kBlock - 1) / kBlock;
    if (segment + 1 < segment_end) {
      const int64_t last = tile.position + (tile.row_begin + tile.row_count - 1) / tile.group;
      const int64_t after = last / kBlock + 1 - (segment + 1) * kSegmentBlocks;
      next_block_count_ = after < kSegmentBlocks ? static_cast<int>(after) : kSegmentBlocks;
    }
    row_tiles_ = RowTiles(tile.row_count - first_row_);
    packed_ = row_tiles_ > 1 || tile.head_dim % 16 != 0;
    vectors_max_ = packed_ ? kTileVectors : MaxVectors(tile.row_count - first_row_);
  }

  // The first segment of a state starts it, later ones are merged into it.
  void Start() {
    Scores();
    for (int r = first_row_; r < tile_.row_count; ++r) {
      SoftmaxRow(r);
      state_.max[r] = scratch_.part_max[r];
      state_.sum[r] = scratch_.part_sum[r];
    }
    Outputs(nullptr, nullptr);
  }

  void Merge() {
    Scores();
    for (int r = first_row_; r < tile_.row_count; ++r) SoftmaxRow(r);
    // Sixteen rows at once; lanes past the last row are of no use and no harm.
    for (int r = first_row_; r < tile_.row_count; r += 16) {
      const F32x16 old_max = Load(state_.max + r), part_max = Load(scratch_.part_max + r);
      const F32x16 max = Max(old_max, part_max);
      const F32x16 a = Exp(Sub(old_max, max)), b = Exp(Sub(part_max, max));
      Store(state_.max + r, max);
      Store(state_.sum + r, Fma(Load(state_.sum + r), a, Mul(Load(scratch_.part_sum + r), b)));
      Store(scratch_.old_scale + r, a);
      Store(scratch_.part_scale + r, b);
    }
    Outputs(scratch_.old_scale, scratch_.part_scale);
  }

 private:
  const Kv* KeyBlock(int i) const {
    return reinterpret_cast<const Kv*>(blocks_[i] + tile_.k_offset);
  }
  const Kv* ValueBlock(int i) const {
    return reinterpret_cast<const Kv*>(blocks_[i] + tile_.v_offset);
  }

  int64_t BlockBytes() const { return sizeof(Kv) * kBlock * tile_.head_dim; }

  // Meanwhile the segment's V is prefetched.
  void Scores() {
    AheadCursor ahead(blocks_, block_count_, tile_.v_offset, BlockBytes(),
                      block_count_ * row_tiles_ * kBlock / (16 * vectors_max_));
    for (int i = 0; i < block_count_; ++i) {
      if (packed_) {
        PackKeys(KeyBlock(i));
        for (int n = 0; n < kBlock; n += kPanelWidth) {
          ScoreRowTiles<kTileVectors, 1>(scratch_.panels + n * tile_.head_dim, kPanelWidth,
                                         i * kBlock + n, ahead);
        }
      } else {
        WithRows(tile_.row_count - first_row_, [&](auto rows) {
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
    ForRowTiles(first_row_, tile_.row_count, [&](int first, int count) {
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

  // scores -> p of one row, with its maximum and sum.
  void SoftmaxRow(int r) {
    float* s = scratch_.scores + r * kScoreStride;
    const int visible = scratch_.visible[r], whole = visible / 16 * 16, tail = visible - whole;
    const Mask16 in_tail = FirstLanes(tail);
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
    scratch_.part_max[r] = max;
    scratch_.part_sum[r] = ReduceAdd(sum);
  }

  // 4, 2 or 1 vectors, at most `vectors_max_` and what is left of the columns.
  int VectorsAt(int column) const {
    const int vectors = Smaller(vectors_max_, (out_stride_ - column) / 16);
    return vectors >= 4 ? 4 : vectors >= 2 ? 2 : 1;
  }

  // Meanwhile the next segment's K is prefetched.
  void Outputs(const float* old_scale, const float* part_scale) {
    AheadCursor ahead(blocks_ + kSegmentBlocks, next_block_count_, tile_.k_offset, BlockBytes(),
                      row_tiles_ * out_stride_ / (16 * vectors_max_));
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
      for (int i = 0; i < block_count_; ++i) v.block[i] = ValueBlock(i) + column;
      v.ld = tile_.head_dim;
      OutputRowTiles<N, StreamLines(N)>(v, column, old_scale, part_scale, ahead);
    }
  }

  template <int N, int kLines, typename B>
  void OutputRowTiles(const Values<B>& v, int column, const float* old_scale,
                      const float* part_scale, AheadCursor& ahead) {
    ForRowTiles(first_row_, tile_.row_count, [&](int first, int count) {
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
  // columns, [visible_][16 VectorsAt()], each kSegment floats per column behind the one before.
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
    for (int key = 0; key < visible_; ++key) {
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
  int out_stride_;
  int first_row_;  // rows before it do not see the segment
  int visible_;    // keys of the segment the last row sees
  int row_tiles_;
  bool packed_;
  int vectors_max_;
  const std::byte* const* blocks_;  // [block_count_ + next_block_count_], this segment's and next
  int block_count_;
  int next_block_count_ = 0;
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

template <typename Kv>
void RunTile(const AttentionTile& tile, const TileScratch& scratch) {
  const int64_t last = tile.position + (tile.row_begin + tile.row_count - 1) / tile.group;
  const int end = static_cast<int>(last / kSegment) + 1;
  SegmentPass<Kv>(tile, scratch, 0, end, scratch.state).Start();
  for (int segment = 1; segment < end; ++segment)
    SegmentPass<Kv>(tile, scratch, segment, end, scratch.state).Merge();
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
  LoadQ(tile, scratch);
  if (tile.kv_half) {
    RunTile<uint16_t>(tile, scratch);
  } else {
    RunTile<float>(tile, scratch);
  }
  for (int r = 0; r < tile.row_count; ++r) FinishRow(tile, scratch.state, r);
}

inline AttentionState PartAt(AttentionState parts, size_t offset) {
  return {parts.max + offset, parts.sum + offset, parts.out + offset};
}

inline void AttendSegments(const AttentionTile& tile, int segment_begin, int segment_end,
                           AttentionState parts, size_t part_floats, float* scratch_floats) {
  const TileScratch scratch = CarveTileScratch(scratch_floats, tile.head_dim);
  LoadQ(tile, scratch);
  for (int segment = segment_begin; segment < segment_end; ++segment) {
    const AttentionState part = PartAt(parts, (segment - segment_begin) * part_floats);
    if (tile.kv_half) {
      SegmentPass<uint16_t>(tile, scratch, segment, segment_end, part).Start();
    } else {
      SegmentPass<float>(tile, scratch, segment, segment_end, part).Start();
    }
  }
}

// The same formula as SegmentPass::Merge.
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
  for (int segment = segment_begin; segment < segment_end && segment <= last; ++segment) {
    const AttentionState part = PartAt(parts, (segment - segment_begin) * part_floats);
    if (segment > 0) {
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
  if (tile.kv_half) {
    StoreRows<uint16_t>(tile);
  } else {
    StoreRows<float>(tile);
  }
}

}  // namespace
}  // namespace cairn
