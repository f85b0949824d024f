// Compiled with AVX2, FMA and F16C: intrinsics, plain structs and anonymous namespaces only.
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/matmul_avx2_tile.h"
#include "kernels/matmul_layout.h"
#include "kernels/matmul_panel.h"

namespace cairn {
namespace {

constexpr int kUnpackedK = 512;   // at a time, reused over all rows
constexpr int kPassColumns = 16;  // of a pass over the rows
// Up to so many rows converting in registers beats a pass over memory; 3 rows x 4 vectors fit them.
constexpr int kDirectRowsMax = 8;

// Row k of `stride` values, V vectors.
template <WeightType type, int stride, int V>
INLINE void LoadWeights(const uint8_t* rows, int64_t k, __m256* w) {
  for (int v = 0; v < V; ++v) {
    const int64_t i = k * stride + v * 8;
    if constexpr (type == WeightType::kF32) {
      w[v] = _mm256_load_ps(reinterpret_cast<const float*>(rows) + i);
    } else if constexpr (type == WeightType::kF16) {
      w[v] = HalvesToFloats(rows + i * 2);
    } else {
      const __m128i h = _mm_load_si128(reinterpret_cast<const __m128i*>(rows + i * 2));
      w[v] = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
    }
  }
}

struct FloatTile {
  const float* x;
  int64_t ldx;
  float* y;
  int64_t ldy;
  int columns;  // that exist from y on
};

template <WeightType type, int stride, int R, int V>
inline void RunTile(const uint8_t* panel, int64_t k, const FloatTile& t, bool continues) {
  __m256 acc[R][V];
  LoadSums<R, V>(t.y, t.ldy, t.columns, continues, acc);
#pragma GCC unroll 4
  for (int64_t i = 0; i < k; ++i) {
    __m256 w[V];
    LoadWeights<type, stride, V>(panel, i, w);
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      const __m256 x = _mm256_set1_ps(t.x[r * t.ldx + i]);
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) acc[r][v] = _mm256_fmadd_ps(w[v], x, acc[r][v]);
    }
  }
  StoreSums<R, V>(t.y, t.ldy, t.columns, acc);
}

// Tiles of at most R rows and V vectors.
template <WeightType type, int stride, int R, int V, int kTileRows = R>
void RunRows(const uint8_t* panel, int64_t k, FloatTile t, int rows, bool continues) {
  while (rows > 0) {
    const int r = TileRows(rows, kTileRows);
    if (r == R) {
      RunTile<type, stride, R, V>(panel, k, t, continues);
      t.x += r * t.ldx;
      t.y += r * t.ldy;
      rows -= r;
    } else {
      if constexpr (R > 1)
        return RunRows<type, stride, R - 1, V, kTileRows>(panel, k, t, rows, continues);
    }
  }
}

// n rows of a panel as [pass][kUnpackedK][kPassColumns] floats.
template <WeightType type>
void Convert(const uint8_t* panel, int64_t k, int n, float* out) {
  for (int i = 0; i < n; ++i) {
    __m256 w[4];
    LoadWeights<type, kPanelColumns, 4>(panel, k + i, w);
    for (int v = 0; v < 4; ++v) {
      _mm256_store_ps(out + (v / 2 * kUnpackedK + i) * kPassColumns + v % 2 * 8, w[v]);
    }
  }
}

template <WeightType type>
void FloatPanel(const PanelCall& c) {
  FloatTile t = {c.x, c.k, c.y, c.ldy, c.columns};
  if (c.rows <= kDirectRowsMax) {
    return RunRows<type, kPanelColumns, 3, 4>(c.panel, c.k, t, c.rows, false);
  }
  // Converted, each pass in one piece: with the stride of a panel's row it would use every other
  // set of the L1 cache only. F32 needs no conversion, and copying it gains nothing.
  constexpr bool kConverts = type != WeightType::kF32;
  constexpr int kStride = kConverts ? kPassColumns : kPanelColumns;
  alignas(64) float unpacked[kConverts ? kUnpackedK * kPanelColumns : 1];
  for (int64_t k = 0; k < c.k; k += kUnpackedK) {
    const int n = static_cast<int>(c.k - k < kUnpackedK ? c.k - k : kUnpackedK);
    if constexpr (kConverts) Convert<type>(c.panel, k, n, unpacked);
    t.x = c.x + k;
    for (int pass = 0; pass < 2 && c.columns > pass * kPassColumns; ++pass) {
      t.y = c.y + pass * kPassColumns;
      t.columns = c.columns - pass * kPassColumns;
      const float* w = kConverts ? unpacked + pass * kUnpackedK * kPassColumns
                                 : reinterpret_cast<const float*>(c.panel) + k * kPanelColumns +
                                       pass * kPassColumns;
      RunRows<WeightType::kF32, kStride, 6, 2>(reinterpret_cast<const uint8_t*>(w), n, t, c.rows,
                                               k > 0);
    }
  }
}

}  // namespace

void MatMulFloatPanelAvx2(const PanelCall& call) {
  switch (call.type) {
    case WeightType::kF32:
      return FloatPanel<WeightType::kF32>(call);
    case WeightType::kF16:
      return FloatPanel<WeightType::kF16>(call);
    default:
      return FloatPanel<WeightType::kBF16>(call);
  }
}

}  // namespace cairn
