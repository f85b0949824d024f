// Internal to matmul_avx2.cc and matmul_float_avx2.cc: partial sums of a tile, conversions.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace cairn {
namespace {

#define INLINE __attribute__((always_inline)) inline

// Keeps g++ from re-associating integer sums: it collects the products of a whole block first and
// spills nearly all of them (half the speed).
INLINE void Pin(__m256i& v) { __asm__("" : "+x"(v)); }

INLINE __m256i Load(const uint8_t* p) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
}
INLINE void StoreBytes(uint8_t* p, __m256i v) {
  _mm256_store_si256(reinterpret_cast<__m256i*>(p), v);
}
// 8 bytes, unsigned.
INLINE __m256 BytesToFloats(const uint8_t* p) {
  return _mm256_cvtepi32_ps(
      _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
INLINE __m256 HalvesToFloats(const uint8_t* p) {
  return _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(p)));
}

INLINE void StoreFloats(float* p, const __m256* v) {
  for (int i = 0; i < 4; ++i) _mm256_store_ps(p + 8 * i, v[i]);
}

INLINE __m256i ColumnMask(int columns) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(columns), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

template <int R, int V>
INLINE void LoadSums(const float* y, int64_t ldy, int columns, bool continues, __m256 (*acc)[V]) {
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) {
      acc[r][v] = _mm256_setzero_ps();
      if (!continues) continue;
      const float* p = y + r * ldy + v * 8;
      acc[r][v] = columns >= V * 8 ? _mm256_loadu_ps(p)
                                   : _mm256_maskload_ps(p, ColumnMask(columns - v * 8));
    }
  }
}

template <int R, int V>
INLINE void StoreSums(float* y, int64_t ldy, int columns, const __m256 (*acc)[V]) {
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) {
      float* p = y + r * ldy + v * 8;
      if (columns >= V * 8) {
        _mm256_storeu_ps(p, acc[r][v]);
      } else {
        _mm256_maskstore_ps(p, ColumnMask(columns - v * 8), acc[r][v]);
      }
    }
  }
}

// The next tile's rows, at most `max`: with 6, 8 rows are 4 + 4, not 6 + 2.
INLINE int TileRows(int rows, int max) {
  return rows >= 2 * max || rows == max ? max : rows > max ? (rows + 1) / 2 : rows;
}

}  // namespace
}  // namespace cairn
