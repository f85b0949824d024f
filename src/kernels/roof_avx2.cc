#include <immintrin.h>

#include "kernels/roof_loops.h"

namespace cairn {
namespace {

constexpr int kChains = 12;

float Fma(int rounds) {
  __m256 acc[kChains];
  for (int i = 0; i < kChains; ++i) acc[i] = _mm256_set1_ps(static_cast<float>(i));
  const __m256 a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(0.001f);
  for (int r = 0; r < rounds; ++r) {
    for (int i = 0; i < kChains; ++i) acc[i] = _mm256_fmadd_ps(acc[i], a, b);
  }
  for (int i = 1; i < kChains; ++i) acc[0] = _mm256_add_ps(acc[0], acc[i]);
  float lanes[8];
  _mm256_storeu_ps(lanes, acc[0]);
  return lanes[0] + lanes[7];
}

// vpmaddubsw alone: what an int8 product costs at best; kernels add the widening.
float Int8(int rounds) {
  __m256i acc[kChains];
  for (int i = 0; i < kChains; ++i) acc[i] = _mm256_set1_epi8(static_cast<char>(i));
  const __m256i b = _mm256_set1_epi8(1);
  for (int r = 0; r < rounds; ++r) {
    for (int i = 0; i < kChains; ++i) acc[i] = _mm256_maddubs_epi16(acc[i], b);
  }
  for (int i = 1; i < kChains; ++i) acc[0] = _mm256_xor_si256(acc[0], acc[i]);
  return static_cast<float>(_mm256_extract_epi32(acc[0], 0));
}

}  // namespace

RoofLoops RoofLoopsAvx2() { return {Fma, Int8, kChains * 8 * 2.0, kChains * 32 * 2.0}; }

}  // namespace cairn
