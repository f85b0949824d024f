// Compiled with AVX2, FMA and F16C: intrinsics, plain structs and anonymous namespaces only.
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/matmul_avx2_tile.h"
#include "kernels/matmul_layout.h"
#include "kernels/matmul_panel.h"

namespace cairn {
namespace {

constexpr int kUnpackedK = 256;  // converted at a time: 32 KiB, reused over all rows
// Up to so many rows converting in registers beats a pass over memory; 3 rows x 4 vectors fit them.
constexpr int kDirectRowsMax = 8;

// Row k of a panel, V vectors from column `column` on.
template <WeightType type, int V>
INLINE void LoadWeights(const uint8_t* panel, int64_t k, int column, __m256* w) {
  for (int v = 0; v < V; ++v) {
    if constexpr (type == WeightType::kF32) {
      w[v] = _mm256_load_ps(reinterpret_cast<const float*>(panel) + k * 32 + column + v * 8);
    } else if constexpr (type == WeightType::kF16) {
      w[v] = HalvesToFloats(panel + k * 64 + column * 2 + v * 16);
    } else {
      const __m128i h =
          _mm_load_si128(reinterpret_cast<const __m128i*>(panel + k * 64 + column * 2 + v * 16));
      w[v] = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
    }
  }
}

struct FloatTile {
  const float* x;
  int64_t ldx;
  float* y;  // of column `column`
  int64_t ldy;
  int column;
  int columns;  // that exist from y on
};

template <WeightType type, int R, int V>
inline void RunTile(const uint8_t* panel, int64_t k, const FloatTile& t, bool continues) {
  __m256 acc[R][V];
  LoadSums<R, V>(t.y, t.ldy, t.columns, continues, acc);
#pragma GCC unroll 4
  for (int64_t i = 0; i < k; ++i) {
    __m256 w[V];
    LoadWeights<type, V>(panel, i, t.column, w);
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
template <WeightType type, int R, int V, int kTileRows = R>
void RunRows(const uint8_t* panel, int64_t k, FloatTile t, int rows, bool continues) {
  while (rows > 0) {
    const int r = TileRows(rows, kTileRows);
    if (r == R) {
      RunTile<type, R, V>(panel, k, t, continues);
      t.x += r * t.ldx;
      t.y += r * t.ldy;
      rows -= r;
    } else {
      if constexpr (R > 1) return RunRows<type, R - 1, V, kTileRows>(panel, k, t, rows, continues);
    }
  }
}

template <WeightType type>
void FloatPanel(const PanelCall& c) {
  FloatTile t = {c.x, c.k, c.y, c.ldy, 0, c.columns};
  if (c.rows <= kDirectRowsMax) return RunRows<type, 3, 4>(c.panel, c.k, t, c.rows, false);
  alignas(64) float unpacked[kUnpackedK * kPanelColumns];
  for (int64_t k = 0; k < c.k; k += kUnpackedK) {
    const int n = static_cast<int>(c.k - k < kUnpackedK ? c.k - k : kUnpackedK);
    const uint8_t* source = reinterpret_cast<const uint8_t*>(unpacked);
    if constexpr (type == WeightType::kF32) {
      source = c.panel + k * 128;
    } else {
      for (int i = 0; i < n; ++i) {
        __m256 w[4];
        LoadWeights<type, 4>(c.panel, k + i, 0, w);
        StoreFloats(unpacked + i * 32, w);
      }
    }
    t.x = c.x + k;
    for (int half = 0; half < 2 && c.columns > half * 16; ++half) {
      t.y = c.y + half * 16;
      t.column = half * 16;
      t.columns = c.columns - half * 16;
      RunRows<WeightType::kF32, 6, 2>(source, n, t, c.rows, k > 0);
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
