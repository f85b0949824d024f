// Attention over one tile of rows, written once on simd16.h and built per CPU level. attention.h
// states the order of operations; here is how they are blocked.
//
// Scores and outputs are the same product, C[r][n] = fma(A[r][k], B[k][n], C[r][n]) with k
// ascending: A = q, B = K transposed for scores; A = p, B = V for outputs. A register tile holds up
// to 6 rows; A is broadcast from memory and B is read along n. With more than 6 rows K (a block at
// a time) and V (a segment at a time, some columns) are converted to float32 into panels that all
// rows use; up to 6 rows (decode) they are converted in registers.
#pragma once

#include "kernels/attention_tile.h"
#include "kernels/simd16.h"
#include "kernels/vector_math.h"

namespace cairn {
namespace {

constexpr int kBlock = 64;
constexpr int kSegment = 256;
constexpr int kRowTile = 6;
// Vectors of a register tile beside 6 rows: 24 + 4 of 32 registers with AVX-512, 12 ymm + 2 of 16
// with AVX2.
#if defined(__AVX512F__)
constexpr int kTileVectors = 4;
#else
constexpr int kTileVectors = 1;
#endif
constexpr int kPanelWidth = 16 * kTileVectors;

template <int N>
struct Int {
  static constexpr int value = N;
};

CAIRN_SIMD F32x16 LoadKv(const float* p) { return Load(p); }
CAIRN_SIMD F32x16 LoadKv(const uint16_t* p) { return LoadHalf(p); }
CAIRN_SIMD F32x16 LoadKvN(const float* p, int n) { return LoadN(p, n); }
CAIRN_SIMD F32x16 LoadKvN(const uint16_t* p, int n) { return LoadHalfN(p, n); }
CAIRN_SIMD void StoreKvN(float* p, F32x16 a, int n) { StoreN(p, a, n); }
CAIRN_SIMD void StoreKvN(uint16_t* p, F32x16 a, int n) { StoreHalfN(p, a, n); }

inline int Smaller(int a, int b) { return a < b ? a : b; }

template <typename Fn>
CAIRN_SIMD void WithRows(int rows, Fn fn) {
  switch (rows) {
    case 1:
      return fn(Int<1>{});
    case 2:
      return fn(Int<2>{});
    case 3:
      return fn(Int<3>{});
    case 4:
      return fn(Int<4>{});
    case 5:
      return fn(Int<5>{});
    default:
      return fn(Int<6>{});
  }
}

// Calls fn(first, count) for register tiles of at most kRowTile rows, as equal as can be.
template <typename Fn>
CAIRN_SIMD void ForRowTiles(int begin, int end, Fn fn) {
  const int tiles = (end - begin + kRowTile - 1) / kRowTile;
  for (int t = 0; t < tiles; ++t) {
    const int first = begin + (end - begin) * t / tiles;
    fn(first, begin + (end - begin) * (t + 1) / tiles - first);
  }
}

// acc[r][n] = fma(a[r * kStride + k], b[k][n], acc[r][n]), k = 0 .. count - 1.
template <int R, int N, int kStride, typename Kv>
CAIRN_SIMD void Accumulate(F32x16 (&acc)[R][N], const float* a, const Kv* b, int64_t ldb,
                           int count) {
  for (int k = 0; k < count; ++k, b += ldb) {
    F32x16 column[N];
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) column[n] = LoadKv(b + 16 * n);
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      const F32x16 x = Set(a[r * kStride + k]);
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) acc[r][n] = Fma(x, column[n], acc[r][n]);
    }
  }
}

template <int R, int N>
CAIRN_SIMD void Clear(F32x16 (&acc)[R][N]) {
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) acc[r][n] = Zero();
  }
}

// scores[r][0 .. 16 N) = q . k.
template <int R, int N, typename Kv>
void ScoreTile(const float* q, const Kv* k, int64_t ldk, int head_dim, float* scores) {
  F32x16 acc[R][N];
  Clear(acc);
  Accumulate<R, N, kQStride>(acc, q, k, ldk, head_dim);
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) Store(scores + r * kScoreStride + 16 * n, acc[r][n]);
  }
}

// V of one segment, from some column on: block i holds keys 64 i .. 64 i + 63.
template <typename Kv>
struct Values {
  const Kv* block[kSegment / kBlock];
  int64_t ld;
};

// Some rows of one segment on their way into the state.
struct OutputRows {
  const float* p;          // [rows, kScoreStride]
  const int32_t* visible;  // [rows], ascending
  float* out;              // [rows, out_stride], from the same column on as Values
  int64_t out_stride;
  const float* old_scale;  // [rows]; null for the first segment, which is copied
  const float* part_scale;
};

// The keys all rows see, then those only later rows see: a key behind a row's position is never
// touched, so even NaN there cannot reach the row.
template <int R, int N, typename Kv>
void OutputTile(const OutputRows& rows, const Values<Kv>& v) {
  F32x16 acc[R][N];
  Clear(acc);
  const int common = rows.visible[0];
  for (int key = 0; key < common; key += kBlock) {
    Accumulate<R, N, kScoreStride>(acc, rows.p + key, v.block[key / kBlock], v.ld,
                                   Smaller(kBlock, common - key));
  }
  for (int key = common; key < rows.visible[R - 1]; ++key) {
    const Kv* column = v.block[key / kBlock] + (key % kBlock) * v.ld;
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      if (key >= rows.visible[r]) continue;
      const F32x16 x = Set(rows.p[r * kScoreStride + key]);
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) acc[r][n] = Fma(x, LoadKv(column + 16 * n), acc[r][n]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      float* out = rows.out + r * rows.out_stride + 16 * n;
      F32x16 merged = acc[r][n];
      if (rows.old_scale != nullptr) {
        merged = Fma(Load(out), Set(rows.old_scale[r]), Mul(merged, Set(rows.part_scale[r])));
      }
      Store(out, merged);
    }
  }
}

// One segment of one tile.
template <typename Kv>
class SegmentPass {
 public:
  SegmentPass(const AttentionTile& tile, const TileScratch& scratch, int segment,
              AttentionState state)
      : tile_(tile),
        scratch_(scratch),
        state_(state),
        segment_(segment),
        out_stride_((tile.head_dim + 15) / 16 * 16) {
    const int64_t base = static_cast<int64_t>(segment) * kSegment;
    first_row_ = tile.row_count;
    for (int r = tile.row_count - 1; r >= 0; --r) {
      const int64_t sees = tile.position + (tile.row_begin + r) / tile.group + 1 - base;
      if (sees <= 0) break;
      scratch.visible[r] = sees < kSegment ? static_cast<int32_t>(sees) : kSegment;
      first_row_ = r;
    }
    visible_ = scratch.visible[tile.row_count - 1];
    for (int i = 0; i * kBlock < visible_; ++i)
      blocks_[i] = tile.blocks[segment * (kSegment / kBlock) + i];
    packed_ = tile.row_count - first_row_ > kRowTile || tile.head_dim % 16 != 0;
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

  void Scores() {
    for (int i = 0; i * kBlock < visible_; ++i) {
      if (packed_) PackKeys(KeyBlock(i));
      ForRowTiles(first_row_, tile_.row_count, [&](int first, int count) {
        if (scratch_.visible[first + count - 1] <= i * kBlock) return;  // sees none of the block
        const float* q = scratch_.q + first * kQStride;
        float* scores = scratch_.scores + first * kScoreStride + i * kBlock;
        WithRows(count, [&](auto rows) {
          constexpr int R = decltype(rows)::value;
          if (packed_) {
            for (int n = 0; n < kBlock; n += kPanelWidth) {
              ScoreTile<R, kTileVectors>(q, scratch_.panels + n * tile_.head_dim, kPanelWidth,
                                         tile_.head_dim, scores + n);
            }
          } else {
            constexpr int N = MaxVectors(R);
            for (int n = 0; n < kBlock; n += 16 * N)
              ScoreTile<R, N>(q, KeyBlock(i) + n, kBlock, tile_.head_dim, scores + n);
          }
        });
      });
    }
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

  void Outputs(const float* old_scale, const float* part_scale) {
    const int vectors_max = packed_ ? kTileVectors : MaxVectors(tile_.row_count - first_row_);
    for (int column = 0; column < out_stride_;) {
      const int vectors = Smaller(vectors_max, (out_stride_ - column) / 16);
      if (vectors >= 4) {
        OutputColumns<4>(column, old_scale, part_scale);
        column += 64;
      } else if (vectors >= 2) {
        OutputColumns<2>(column, old_scale, part_scale);
        column += 32;
      } else {
        OutputColumns<1>(column, old_scale, part_scale);
        column += 16;
      }
    }
  }

  // N vectors of columns, all rows.
  template <int N>
  void OutputColumns(int column, const float* old_scale, const float* part_scale) {
    if (packed_) {
      PackValues<N>(column);
      Values<float> v;
      for (int i = 0; i < kSegment / kBlock; ++i)
        v.block[i] = scratch_.panels + i * kBlock * 16 * N;
      v.ld = 16 * N;
      OutputRowTiles<N>(v, column, old_scale, part_scale);
    } else {
      Values<Kv> v;
      for (int i = 0; i * kBlock < visible_; ++i) v.block[i] = ValueBlock(i) + column;
      v.ld = tile_.head_dim;
      OutputRowTiles<N>(v, column, old_scale, part_scale);
    }
  }

  template <int N, typename V>
  void OutputRowTiles(const Values<V>& v, int column, const float* old_scale,
                      const float* part_scale) {
    ForRowTiles(first_row_, tile_.row_count, [&](int first, int count) {
      const bool merge = old_scale != nullptr;
      const OutputRows rows{.p = scratch_.scores + first * kScoreStride,
                            .visible = scratch_.visible + first,
                            .out = state_.out + first * out_stride_ + column,
                            .out_stride = out_stride_,
                            .old_scale = merge ? old_scale + first : nullptr,
                            .part_scale = merge ? part_scale + first : nullptr};
      WithRows(count, [&](auto r) {
        constexpr int R = decltype(r)::value;
        if constexpr (N <= MaxVectors(R)) OutputTile<R, N>(rows, v);
      });
    });
  }

  // The block's K in float32, [kBlock / kPanelWidth][head_dim][kPanelWidth].
  void PackKeys(const Kv* k) {
    for (int column = 0; column < kBlock; column += kPanelWidth) {
      float* to = scratch_.panels + column * tile_.head_dim;
      for (int d = 0; d < tile_.head_dim; ++d, to += kPanelWidth) {
        for (int n = 0; n < kPanelWidth; n += 16)
          Store(to + n, LoadKv(k + d * kBlock + column + n));
      }
    }
  }

  // Columns of the segment's V in float32, [visible_][16 N], zero past head_dim.
  template <int N>
  void PackValues(int column) {
    for (int key = 0; key < visible_; ++key) {
      const Kv* from = ValueBlock(key / kBlock) + (key % kBlock) * tile_.head_dim + column;
      float* to = scratch_.panels + key * 16 * N;
      if (column + 16 * N <= tile_.head_dim) {
        for (int n = 0; n < N; ++n) Store(to + 16 * n, LoadKv(from + 16 * n));
      } else {
        for (int n = 0; n < N; ++n) {
          const int left = tile_.head_dim - column - 16 * n;
          Store(to + 16 * n, LoadKvN(from + 16 * n, Smaller(left, 16)));
        }
      }
    }
  }

  const AttentionTile& tile_;
  const TileScratch& scratch_;
  AttentionState state_;
  int segment_;
  int out_stride_;
  int first_row_;  // rows before it do not see the segment
  int visible_;    // keys of the segment the last row sees
  bool packed_;
  const std::byte* blocks_[kSegment / kBlock];
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
void RunSegment(const AttentionTile& tile, const TileScratch& scratch, int segment) {
  SegmentPass<Kv> pass(tile, scratch, segment, scratch.state);
  if (segment == 0) {
    pass.Start();
  } else {
    pass.Merge();
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
  LoadQ(tile, scratch);
  const int64_t last = tile.position + (tile.row_begin + tile.row_count - 1) / tile.group;
  for (int segment = 0; segment <= last / kSegment; ++segment) {
    if (tile.kv_half) {
      RunSegment<uint16_t>(tile, scratch, segment);
    } else {
      RunSegment<float>(tile, scratch, segment);
    }
  }
  for (int r = 0; r < tile.row_count; ++r) FinishRow(tile, scratch.state, r);
}

inline void AttendSegment(const AttentionTile& tile, int segment, AttentionState part,
                          float* scratch_floats) {
  const TileScratch scratch = CarveTileScratch(scratch_floats, tile.head_dim);
  LoadQ(tile, scratch);
  if (tile.kv_half) {
    SegmentPass<uint16_t>(tile, scratch, segment, part).Start();
  } else {
    SegmentPass<float>(tile, scratch, segment, part).Start();
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
    const size_t offset = (segment - segment_begin) * part_floats;
    const AttentionState part = {parts.max + offset, parts.sum + offset, parts.out + offset};
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
