// Internal to matmul_avx512.cc and matmul_float_avx512.cc: a row of a panel in two vectors.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace cairn {
namespace {

#define INLINE __attribute__((always_inline)) inline

struct PairF {
  __m512 lo, hi;
};

INLINE PairF LoadHalves(const uint8_t* p) {
  return {_mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(p))),
          _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(p + 32)))};
}

INLINE void Store(float* p, PairF v) {
  _mm512_store_ps(p, v.lo);
  _mm512_store_ps(p + 16, v.hi);
}

// The columns that exist.
INLINE void SetMasks(int columns, __mmask16* lo, __mmask16* hi) {
  const uint32_t mask = columns == 32 ? ~0u : (1u << columns) - 1;
  *lo = static_cast<__mmask16>(mask);
  *hi = static_cast<__mmask16>(mask >> 16);
}

// The next tile's rows, at most 6: 8 rows are 4 + 4, not 6 + 2.
INLINE int TileRows(int rows) {
  return rows >= 12 || rows == 6 ? 6 : rows > 6 ? (rows + 1) / 2 : rows;
}

}  // namespace
}  // namespace cairn
