// The two products of attention, in registers; part of attention_impl.h.
//
// Scores and outputs are the same product, C[r][n] = fma(A[r][k], B[k][n], C[r][n]) with k
// ascending: A = q, B = K transposed for scores; A = p, B = V for outputs. A register tile holds up
// to 6 rows; A is broadcast from memory and B is read along n.
#pragma once

#include "kernels/attention_tile.h"
#include "kernels/simd16.h"

namespace cairn {
namespace {

constexpr int kBlock = 64;
constexpr int kSegment = 256;
constexpr int kSegmentBlocks = kSegment / kBlock;
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

inline int RowTiles(int rows, int max = kRowTile) { return (rows + max - 1) / max; }

// Calls fn(first, count) for register tiles of at most kMax rows, as equal as can be.
template <int kMax = kRowTile, typename Fn>
CAIRN_SIMD void ForRowTiles(int begin, int end, Fn fn) {
  const int tiles = RowTiles(end - begin, kMax);
  for (int t = 0; t < tiles; ++t) {
    const int first = begin + (end - begin) * t / tiles;
    fn(first, begin + (end - begin) * (t + 1) / tiles - first);
  }
}

// Memory to prefetch during a product: the lines at p + k * step + i * stream while k is computed.
// K and V are streamed from memory once per tile and phase, too fast for the caches to guess.
// Several streams, so that the walks of their page tables overlap.
struct Ahead {
  const std::byte* p;
  int64_t step;
  int64_t stream;
};

// Hands the KV of some blocks out to the products of one phase, in equal pieces.
class AheadCursor {
 public:
  // Block i is at blocks[i] + offset. REQUIRES: count <= 4.
  AheadCursor(const std::byte* const* blocks, int count, size_t offset, int64_t block_bytes,
              int product_count)
      : blocks_(blocks), count_(count), offset_(offset), block_bytes_(block_bytes) {
    const int pieces = count > 0 ? product_count / count : 1;
    piece_bytes_ = pieces > 1 ? (block_bytes + pieces - 1) / pieces : block_bytes;
  }

  // For a product over `length` terms with `lines` prefetches each; `idle` is any readable address.
  Ahead Next(int length, int lines, const void* idle) {
    if (block_ >= count_) return {static_cast<const std::byte*>(idle), 0, 0};
    const Ahead ahead = {blocks_[block_] + offset_ + done_,
                         (piece_bytes_ + length - 1) / length / lines,
                         piece_bytes_ / lines / 64 * 64};
    done_ += piece_bytes_;
    if (done_ >= block_bytes_) {
      done_ = 0;
      ++block_;
    }
    return ahead;
  }

 private:
  const std::byte* const* blocks_;
  int count_;
  size_t offset_;
  int64_t block_bytes_, piece_bytes_;
  int block_ = 0;
  int64_t done_ = 0;
};

// acc[r][n] = fma(a[r * kStride + k], b[k][n], acc[r][n]), k = 0 .. count - 1.
template <int R, int N, int kStride, int kLines, typename Kv>
CAIRN_SIMD void Accumulate(F32x16 (&acc)[R][N], const float* a, const Kv* b, int64_t ldb, int count,
                           Ahead ahead) {
  for (int k = 0; k < count; ++k, b += ldb, ahead.p += ahead.step) {
#pragma GCC unroll 4
    for (int line = 0; line < kLines; ++line)
      __builtin_prefetch(ahead.p + ahead.stream * line, 0, 2);
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
template <int R, int N, int kLines, typename Kv>
void ScoreTile(const float* q, const Kv* k, int64_t ldk, int head_dim, Ahead ahead, float* scores) {
  F32x16 acc[R][N];
  Clear(acc);
  Accumulate<R, N, kQStride, kLines>(acc, q, k, ldk, head_dim, ahead);
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) Store(scores + r * kScoreStride + 16 * n, acc[r][n]);
  }
}

// V of one segment, from some column on: block i holds keys 64 i .. 64 i + 63.
template <typename Kv>
struct Values {
  const Kv* block[kSegmentBlocks];
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
template <int R, int N, int kLines, typename Kv>
void OutputTile(const OutputRows& rows, const Values<Kv>& v, Ahead ahead) {
  F32x16 acc[R][N];
  Clear(acc);
  const int common = rows.visible[0];
  for (int key = 0; key < common; key += kBlock) {
    Accumulate<R, N, kScoreStride, kLines>(acc, rows.p + key, v.block[key / kBlock], v.ld,
                                           Smaller(kBlock, common - key),
                                           {ahead.p + key * ahead.step, ahead.step, ahead.stream});
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

}  // namespace
}  // namespace cairn
