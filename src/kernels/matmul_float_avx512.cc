// Compiled with AVX-512: intrinsics, plain structs and anonymous namespaces only.
// g++ 12 takes the deliberately undefined operand inside its own intrinsics for a mistake of ours.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/matmul_avx512_tile.h"
#include "kernels/matmul_layout.h"
#include "kernels/matmul_panel.h"

namespace cairn {
namespace {

constexpr int kUnpackedK = 256;  // converted at a time: 32 KiB, reused over all rows
// Up to so many rows converting in registers beats a pass over memory.
constexpr int kDirectRowsMax = 48;

template <WeightType type>
INLINE PairF LoadFloats(const uint8_t* panel, int64_t k) {
  if constexpr (type == WeightType::kF32) {
    const float* p = reinterpret_cast<const float*>(panel) + k * 32;
    return {_mm512_load_ps(p), _mm512_load_ps(p + 16)};
  } else if constexpr (type == WeightType::kF16) {
    return LoadHalves(panel + k * 64);
  } else {
    const __m256i* p = reinterpret_cast<const __m256i*>(panel + k * 64);
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_load_si256(p)), 16)),
            _mm512_castsi512_ps(
                _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_load_si256(p + 1)), 16))};
  }
}

struct FloatTile {
  const float* x;
  int64_t ldx;
  float* y;
  int64_t ldy;
  __mmask16 mask_lo, mask_hi;
};

template <WeightType type, int R>
inline void RunTile(const uint8_t* panel, int64_t k, const FloatTile& t, bool continues) {
  PairF acc[R];
  for (int r = 0; r < R; ++r) {
    acc[r] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    if (continues) {
      acc[r].lo = _mm512_maskz_loadu_ps(t.mask_lo, t.y + r * t.ldy);
      acc[r].hi = _mm512_maskz_loadu_ps(t.mask_hi, t.y + r * t.ldy + 16);
    }
  }
#pragma GCC unroll 4
  for (int64_t i = 0; i < k; ++i) {
    const PairF w = LoadFloats<type>(panel, i);
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      const __m512 x = _mm512_set1_ps(t.x[r * t.ldx + i]);
      acc[r].lo = _mm512_fmadd_ps(w.lo, x, acc[r].lo);
      acc[r].hi = _mm512_fmadd_ps(w.hi, x, acc[r].hi);
    }
  }
  for (int r = 0; r < R; ++r) {
    _mm512_mask_storeu_ps(t.y + r * t.ldy, t.mask_lo, acc[r].lo);
    _mm512_mask_storeu_ps(t.y + r * t.ldy + 16, t.mask_hi, acc[r].hi);
  }
}

template <WeightType type>
void RunRows(const uint8_t* panel, int64_t k, FloatTile t, int rows, bool continues) {
  while (rows > 0) {
    const int r = TileRows(rows);
    switch (r) {
      case 1:
        RunTile<type, 1>(panel, k, t, continues);
        break;
      case 2:
        RunTile<type, 2>(panel, k, t, continues);
        break;
      case 3:
        RunTile<type, 3>(panel, k, t, continues);
        break;
      case 4:
        RunTile<type, 4>(panel, k, t, continues);
        break;
      case 5:
        RunTile<type, 5>(panel, k, t, continues);
        break;
      default:
        RunTile<type, 6>(panel, k, t, continues);
    }
    t.x += r * t.ldx;
    t.y += r * t.ldy;
    rows -= r;
  }
}

template <WeightType type>
void FloatPanel(const PanelCall& c) {
  FloatTile t = {c.x, c.k, c.y, c.ldy, 0, 0};
  SetMasks(c.columns, &t.mask_lo, &t.mask_hi);
  if (c.rows <= kDirectRowsMax) return RunRows<type>(c.panel, c.k, t, c.rows, false);
  alignas(64) float unpacked[kUnpackedK * kPanelColumns];
  for (int64_t k = 0; k < c.k; k += kUnpackedK) {
    const int n = static_cast<int>(c.k - k < kUnpackedK ? c.k - k : kUnpackedK);
    const uint8_t* source = reinterpret_cast<const uint8_t*>(unpacked);
    if constexpr (type == WeightType::kF32) {
      source = c.panel + k * 128;
    } else {
      for (int i = 0; i < n; ++i) Store(unpacked + i * 32, LoadFloats<type>(c.panel, k + i));
    }
    t.x = c.x + k;
    RunRows<WeightType::kF32>(source, n, t, c.rows, k > 0);
  }
}

}  // namespace

void MatMulFloatPanelAvx512(const PanelCall& call) {
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
