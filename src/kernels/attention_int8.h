// Attention over a q8_0 store: exact integer products; part of attention_impl.h. attention.h states
// the order of operations.
//
// K is read as it lies in the store, a block at a time, by all rows of the tile: the block stays in
// L1. Sums of a block of 32 dims are int32 in registers; scores collect them in memory. p times the
// scales of V is rounded to int16 for a segment, so that the output of a segment is one exact
// integer sum too.
#pragma once

#include "kernels/attention_int8_lanes.h"
#include "kernels/attention_segment.h"

namespace cairn {
namespace {

constexpr int kScaleDims = 32;  // of q and K share a scale
constexpr int kScalesMax = kHeadDimMax / kScaleDims;
constexpr int kInt8QStride = (kHeadDimMax + 127) / 64 * 64;
constexpr int kWeightStride = kSegment + 32;
// Rows of a register tile of q.k: with AVX2 four rows of two ymm leave room for the steps of a
// product, 24 zmm are left with AVX-512.
#if defined(__AVX512F__)
constexpr int kQuadRows = kRowTile;
#else
constexpr int kQuadRows = 4;
#endif

// In place of TileScratch.q and TileScratch.panels.
struct Int8Scratch {
  explicit Int8Scratch(const TileScratch& s)
      : q_scale(s.q),
        p_scale(q_scale + kAttentionTileRowsMax * kScalesMax),
        q_bias(reinterpret_cast<int32_t*>(p_scale + kRowArray)),
        weights(reinterpret_cast<int16_t*>(q_bias + kAttentionTileRowsMax * kScalesMax)),
        q(reinterpret_cast<int8_t*>(weights + kAttentionTileRowsMax * kWeightStride)),
        value_scale(s.panels) {}
  float* q_scale;      // [rows, kScalesMax]
  float* p_scale;      // [rows] of the segment
  int32_t* q_bias;     // [rows, kScalesMax], -128 * sum of q
  int16_t* weights;    // [rows, kWeightStride], p * value_scale / p_scale
  int8_t* q;           // [rows, kInt8QStride]
  float* value_scale;  // [kSegment]
};
static_assert(kAttentionTileRowsMax * (2 * kScalesMax * 4 + kWeightStride * 2 + kInt8QStride) +
                  kRowArray * 4 <=
              kAttentionTileRowsMax * kQStride * 4);

// x [n] -> int8 q and the bits of their bfloat16 scale: x ~ scale * q, |q| <= 127. Writes q up to a
// multiple of 16.
inline uint16_t QuantizeLanes(const float* x, int n, int8_t* q) {
  F32x16 peak = Zero(), poison = Zero();
  for (int i = 0; i < n; i += 16) {
    const F32x16 v = LoadN(x + i, Smaller(16, n - i));
    peak = Max(Abs(v), peak);
    poison = Add(poison, Mul(v, Zero()));  // NaN and infinity leave NaN
  }
  const float amax = ReduceMax(peak);
  const bool finite = ReduceAdd(poison) == 0;
  float scale = 0, inverse = 0;
  if (finite && amax >= 0x1p-100f) {
    scale = amax / 127.0f;
    uint32_t bits;
    __builtin_memcpy(&bits, &scale, sizeof bits);
    bits = (bits + 0xffffu) & 0xffff0000u;  // up, so that |q| <= 127
    __builtin_memcpy(&scale, &bits, sizeof scale);
    inverse = 1.0f / scale;
  }
  for (int i = 0; i < n; i += 16) {
    const F32x16 v = finite ? LoadN(x + i, Smaller(16, n - i)) : Zero();
    StoreInt8(q + i, RoundToInt(Mul(v, Set(inverse))));
  }
  if (!finite) return 0x7fc0;
  uint32_t bits;
  __builtin_memcpy(&bits, &scale, sizeof bits);
  return static_cast<uint16_t>(bits >> 16);
}

inline float BFloat16Value(uint16_t half) {
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float f;
  __builtin_memcpy(&f, &bits, sizeof f);
  return f;
}

// scores[r][0 .. 64) = q . k of one block. Not inlined, like the output tile: g++ 12 then leaves
// the sums in memory. key_scales [head_dim / 32][64].
template <int R, int N, int kLines>
__attribute__((noinline)) void Int8ScoreTile(const Int8Scratch& scratch, int row,
                                             const uint8_t* keys, const uint16_t* key_scales,
                                             int head_dim, Ahead ahead, float* scores) {
  const int8_t* q = scratch.q + row * kInt8QStride;
  const float* q_scale = scratch.q_scale + row * kScalesMax;
  const int32_t* q_bias = scratch.q_bias + row * kScalesMax;
  for (int block = 0; block * kScaleDims < head_dim; ++block) {
    const int quad_begin = block * kScaleDims / 4;
    const int quad_end = Smaller(quad_begin + kScaleDims / 4, head_dim / 4);
    for (int n0 = 0; n0 < kBlock / 16; n0 += N) {
      I32x16 acc[R][N];
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) acc[r][n] = StartQuads(q_bias + r * kScalesMax + block);
      }
      for (int quad = quad_begin; quad < quad_end; ++quad) {
        if (n0 == 0) {
#pragma GCC unroll 4
          for (int line = 0; line < kLines; ++line)
            __builtin_prefetch(ahead.p + ahead.stream * line, 0, 2);
          ahead.p += ahead.step;
        }
        const uint8_t* from = keys + (quad * kBlock + n0 * 16) * 4;
        decltype(LoadQuads(from)) k[N];
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) k[n] = LoadQuads(from + 64 * n);
#pragma GCC unroll 6
        for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
          for (int n = 0; n < N; ++n) DotQuads(acc[r][n], k[n], q + r * kInt8QStride + quad * 4);
        }
      }
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) {
        const F32x16 key_scale = LoadBFloat16(key_scales + block * kBlock + (n0 + n) * 16);
#pragma GCC unroll 6
        for (int r = 0; r < R; ++r) {
          float* s = scores + r * kScoreStride + (n0 + n) * 16;
          const F32x16 scale = Mul(Set(q_scale[r * kScalesMax + block]), key_scale);
          Store(s, Fma(ToFloat(acc[r][n]), scale, block == 0 ? Zero() : Load(s)));
        }
      }
    }
  }
}

// Some rows of one segment on their way into the state; pointers as in OutputRows.
struct Int8OutputRows {
  const int16_t* weights;  // [rows, kWeightStride]
  const float* p_scale;    // [rows]
  int visible;             // keys the last row sees
  float* out;
  int64_t out_stride;
  const float* old_scale;
  const float* part_scale;
};

template <int R, int N>
CAIRN_SIMD void ClearInts(I32x16 (&acc)[R][N]) {
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) acc[r][n] = SetInt(I32x16{}, 0);
  }
}

// acc[r][n] += weights[r] . v of `pairs` pairs of keys.
template <int R, int N, int kLines>
CAIRN_SIMD void AccumulatePairs(I32x16 (&acc)[R][N], const int16_t* weights, const int8_t* v,
                                int64_t ldv, int pairs, Ahead ahead) {
  for (int pair = 0; pair < pairs; ++pair, v += ldv, weights += 2, ahead.p += ahead.step) {
#pragma GCC unroll 4
    for (int line = 0; line < kLines; ++line)
      __builtin_prefetch(ahead.p + ahead.stream * line, 0, 2);
    decltype(LoadPairs(v)) column[N];
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) column[n] = LoadPairs(v + 32 * n);
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) DotPairs(acc[r][n], column[n], weights + r * kWeightStride);
    }
  }
}

// Keys behind a row's position have weight 0 and integer values: they add exactly 0.
template <int R, int N, int kLines>
__attribute__((noinline)) void Int8OutputTile(const Int8OutputRows& rows, const Values<int8_t>& v,
                                              Ahead ahead) {
  I32x16 acc[R][N];
  ClearInts(acc);
  for (int first = 0; first < rows.visible; first += kBlock) {
    const int pairs = (Smaller(kBlock, rows.visible - first) + 1) / 2;
    AccumulatePairs<R, N, kLines>(acc, rows.weights + first, v.block[first / kBlock], v.ld, pairs,
                                  {ahead.p + first / 2 * ahead.step, ahead.step, ahead.stream});
  }
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
    float* out = rows.out + r * rows.out_stride;
    F32x16 part[N];
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) part[n] = Mul(ToFloat(acc[r][n]), Set(rows.p_scale[r]));
    if (rows.old_scale == nullptr) {
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) Store(out + 16 * n, part[n]);
    } else {
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) {
        Store(out + 16 * n, Fma(Load(out + 16 * n), Set(rows.old_scale[r]),
                                Mul(part[n], Set(rows.part_scale[r]))));
      }
    }
  }
}

// One segment of one tile.
class Int8SegmentPass {
 public:
  Int8SegmentPass(const AttentionTile& tile, const TileScratch& scratch, int segment,
                  int segment_end, AttentionState state)
      : tile_(tile),
        scratch_(scratch),
        int8_(scratch),
        state_(state),
        rows_(tile, scratch, segment, segment_end),
        out_stride_((tile.head_dim + 15) / 16 * 16),
        row_tiles_(RowTiles(tile.row_count - rows_.first_row)) {}

  // The first segment of a state starts it, later ones are merged into it.
  void Start() {
    ScoresToWeights();
    StartState(scratch_, state_, rows_.first_row, tile_.row_count);
    Outputs(nullptr, nullptr);
  }
  void Merge() {
    ScoresToWeights();
    MergeState(scratch_, state_, rows_.first_row, tile_.row_count);
    Outputs(scratch_.old_scale, scratch_.part_scale);
  }

 private:
  static int KeyScales(int head_dim) { return (head_dim + kScaleDims - 1) / kScaleDims; }
  int64_t KeyBytes() const {
    return int64_t{kBlock} * (tile_.head_dim + 2 * KeyScales(tile_.head_dim));
  }
  int64_t ValueBytes() const { return int64_t{kBlock} * (tile_.head_dim + 2); }

  void ScoresToWeights() {
    // Few rows do few products, which then have more to prefetch each.
    if (row_tiles_ <= 3) {
      Scores<4>();
    } else {
      Scores<1>();
    }
    for (int i = 0; i < rows_.block_count; ++i) {
      const auto* scales = reinterpret_cast<const uint16_t*>(rows_.blocks[i] + tile_.v_offset +
                                                             kBlock * tile_.head_dim);
      for (int n = 0; n < kBlock; n += 16)
        Store(int8_.value_scale + i * kBlock + n, LoadBFloat16(scales + n));
    }
    for (int r = rows_.first_row; r < tile_.row_count; ++r) {
      SoftmaxRow(scratch_, r);
      WeightsOfRow(r);
    }
  }

  // Meanwhile the segment's V is prefetched.
  template <int kLines>
  void Scores() {
    AheadCursor ahead(rows_.blocks, rows_.block_count, tile_.v_offset, ValueBytes(),
                      rows_.block_count * row_tiles_);
    for (int i = 0; i < rows_.block_count; ++i) {
      const auto* keys = reinterpret_cast<const uint8_t*>(rows_.blocks[i] + tile_.k_offset);
      const auto* scales = reinterpret_cast<const uint16_t*>(keys + kBlock * tile_.head_dim);
      ForRowTiles<kQuadRows>(rows_.first_row, tile_.row_count, [&](int first, int count) {
        const Ahead next = ahead.Next(tile_.head_dim / 4, kLines, keys);
        if (scratch_.visible[first + count - 1] <= i * kBlock) return;
        WithRows(count, [&](auto rows) {
          constexpr int R = decltype(rows)::value;
          if constexpr (R <= kQuadRows) {
            Int8ScoreTile<R, kTileVectors, kLines>(
                int8_, first, keys, scales, tile_.head_dim, next,
                scratch_.scores + first * kScoreStride + i * kBlock);
          }
        });
      });
    }
  }

  // p of one row, times the scales of V, as int16 with one scale; zero behind the row's position.
  void WeightsOfRow(int r) {
    float* p = scratch_.scores + r * kScoreStride;
    int16_t* weights = int8_.weights + r * kWeightStride;
    const int visible = scratch_.visible[r];
    F32x16 peak = Zero(), sum = Zero();
    for (int i = 0; i < visible; i += 16) {
      const F32x16 weight = Select(FirstLanes(Smaller(16, visible - i)),
                                   Mul(Load(p + i), Load(int8_.value_scale + i)), Zero());
      Store(p + i, weight);
      peak = Max(weight, peak);
      sum = Add(sum, weight);
    }
    const float top = ReduceMax(peak);
    const bool finite = ReduceAdd(sum) < __builtin_inff();
    const bool nonzero = finite && top >= 0x1p-100f;
    int8_.p_scale[r] = nonzero ? top / 32767.0f : finite ? 0.0f : __builtin_nanf("");
    const F32x16 inverse = Set(nonzero ? 32767.0f / top : 0.0f);
    int i = 0;
    for (; i < visible; i += 16)
      StoreInt16(weights + i,
                 nonzero ? RoundToInt(Mul(Load(p + i), inverse)) : SetInt(I32x16{}, 0));
    for (; i < rows_.visible; i += 16) StoreInt16(weights + i, SetInt(I32x16{}, 0));
  }

  // Meanwhile the next segment's K is prefetched.
  void Outputs(const float* old_scale, const float* part_scale) {
    AheadCursor ahead(rows_.blocks + kSegmentBlocks, rows_.next_block_count, tile_.k_offset,
                      KeyBytes(), row_tiles_ * out_stride_ / (16 * kTileVectors));
    for (int column = 0; column < out_stride_;) {
      const int left = (out_stride_ - column) / 16;
      if (kTileVectors == 4 && left >= 4) {
        OutputColumns<kTileVectors>(column, old_scale, part_scale, ahead);
        column += 16 * kTileVectors;
      } else {
        OutputColumns<1>(column, old_scale, part_scale, ahead);
        column += 16;
      }
    }
  }

  template <int N>
  void OutputColumns(int column, const float* old_scale, const float* part_scale,
                     AheadCursor& ahead) {
    Values<int8_t> v;
    for (int i = 0; i < rows_.block_count; ++i) {
      v.block[i] = reinterpret_cast<const int8_t*>(rows_.blocks[i] + tile_.v_offset) + 2 * column;
    }
    v.ld = 2 * tile_.head_dim;
    // With 4 vectors one product prefetches a whole block of K: in four streams, whose page walks
    // overlap (decode at 24K: 0.82 ms a layer instead of 0.98 in two).
    if (kTileVectors == 4 && row_tiles_ <= 2) {
      OutputRowTiles<N, 4>(v, column, old_scale, part_scale, ahead);
    } else {
      OutputRowTiles<N, 1>(v, column, old_scale, part_scale, ahead);
    }
  }

  template <int N, int kLines>
  void OutputRowTiles(const Values<int8_t>& v, int column, const float* old_scale,
                      const float* part_scale, AheadCursor& ahead) {
    ForRowTiles<kRowTile>(rows_.first_row, tile_.row_count, [&](int first, int count) {
      const bool merge = old_scale != nullptr;
      const int visible = scratch_.visible[first + count - 1];
      const Int8OutputRows rows{.weights = int8_.weights + first * kWeightStride,
                                .p_scale = int8_.p_scale + first,
                                .visible = visible,
                                .out = state_.out + first * out_stride_ + column,
                                .out_stride = out_stride_,
                                .old_scale = merge ? old_scale + first : nullptr,
                                .part_scale = merge ? part_scale + first : nullptr};
      const Ahead next = ahead.Next((visible + 1) / 2, kLines, v.block[0]);
      WithRows(count,
               [&](auto r) { Int8OutputTile<decltype(r)::value, N, kLines>(rows, v, next); });
    });
  }

  const AttentionTile& tile_;
  const TileScratch& scratch_;
  Int8Scratch int8_;
  AttentionState state_;
  SegmentRows rows_;
  int out_stride_;
  int row_tiles_;
};

// q of all rows, times scale, as int8.
inline void LoadInt8Q(const AttentionTile& tile, const TileScratch& tile_scratch) {
  const Int8Scratch scratch(tile_scratch);
  float scaled[kHeadDimMax + 16];
  for (int r = 0; r < tile.row_count; ++r) {
    const int row = tile.row_begin + r;
    const float* from = tile.q + (row / tile.group) * tile.ldq + (row % tile.group) * tile.head_dim;
    for (int d = 0; d < tile.head_dim; d += 16) {
      const int n = Smaller(16, tile.head_dim - d);
      StoreN(scaled + d, Mul(LoadN(from + d, n), Set(tile.scale)), n);
    }
    for (int d = 0; d < tile.head_dim; d += kScaleDims) {
      const int n = Smaller(kScaleDims, tile.head_dim - d);
      int8_t* q = scratch.q + r * kInt8QStride + d;
      const int index = r * kScalesMax + d / kScaleDims;
      scratch.q_scale[index] = BFloat16Value(QuantizeLanes(scaled + d, n, q));
      int32_t sum = 0;
      for (int i = 0; i < n; ++i) sum += q[i];
      scratch.q_bias[index] = -128 * sum;
    }
  }
}

inline void StoreInt8Rows(const StoreTile& tile) {
  const int d = tile.head_dim;
  auto* keys = reinterpret_cast<uint8_t*>(tile.k_block);
  auto* key_scales = reinterpret_cast<uint16_t*>(tile.k_block + kBlock * d);
  auto* values = reinterpret_cast<int8_t*>(tile.v_block);
  auto* value_scales = reinterpret_cast<uint16_t*>(tile.v_block + kBlock * d);
  int8_t q[kHeadDimMax + 16];
  for (int r = 0; r < tile.row_count; ++r) {
    const int slot = tile.slot_begin + r;
    for (int i = 0; i < d; i += kScaleDims) {
      key_scales[i / kScaleDims * kBlock + slot] =
          QuantizeLanes(tile.k + r * tile.ldk + i, Smaller(kScaleDims, d - i), q + i);
    }
    for (int i = 0; i < d; i += 4) {
      const uint32_t four = static_cast<uint32_t>(FourBytes(q + i)) ^ 0x80808080u;
      __builtin_memcpy(keys + (i * kBlock + slot * 4), &four, sizeof four);
    }
    value_scales[slot] = QuantizeLanes(tile.v + r * tile.ldv, d, q);
    int8_t* to = values + slot / 2 * 2 * d + slot % 2;
    for (int i = 0; i < d; ++i) to[2 * i] = q[i];
  }
}

}  // namespace
}  // namespace cairn
