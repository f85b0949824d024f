// Compiled with AVX2: intrinsics and plain structs only.
#include <immintrin.h>

#include <cstdint>

#include "kernels/quant_rows.h"

namespace cairn {
namespace {

inline uint32_t MaxLane(__m256i v) {
  __m128i m = _mm_max_epu32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4e));
  m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xb1));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(m));
}

inline int32_t SumLanes(__m256i v) {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
  return _mm_cvtsi128_si32(s);
}

// n = v rounded with its largest magnitude at `top`; returns the sum of (v - scale * n)^2.
inline float Quantize(const __m256 v[4], float amax, float top, float scale, __m256i n[4]) {
  const __m256 inverse = _mm256_set1_ps(top / amax);
  const __m256 step = _mm256_set1_ps(scale);
  __m256 lanes = _mm256_setzero_ps();
  for (int i = 0; i < 4; ++i) {
    n[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse));
    const __m256 e = _mm256_fnmadd_ps(step, _mm256_cvtepi32_ps(n[i]), v[i]);
    lanes = _mm256_fmadd_ps(e, e, lanes);
  }
  __m128 sum = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps(lanes, 1));
  sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
  return _mm_cvtss_f32(_mm_add_ss(sum, _mm_shuffle_ps(sum, sum, 1)));
}

}  // namespace

void QuantizeBlocksAvx2(const float* x, int64_t count, int8_t* q, ActivationBlock* blocks) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  // packs works inside 128-bit halves; this puts its 4-byte groups back in order.
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  for (int64_t b = 0; b < count; ++b, x += 32, q += 32) {
    __m256 v[4];
    __m256i top = _mm256_setzero_si256();
    for (int i = 0; i < 4; ++i) {
      v[i] = _mm256_loadu_ps(x + 8 * i);
      top = _mm256_max_epu32(top, _mm256_and_si256(_mm256_castps_si256(v[i]), magnitude));
    }
    const uint32_t amax_bits = MaxLane(top);
    const float amax =
        _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(static_cast<int>(amax_bits))));
    __m256i* out = reinterpret_cast<__m256i*>(q);
    if (amax_bits >= 0x7f800000 || amax < 0x1p-100f) {
      const float scale = amax_bits >= 0x7f800000 ? __builtin_nanf("") : 0.0f;
      _mm256_storeu_si256(out, _mm256_setzero_si256());
      blocks[b] = {scale, scale, 0, 0};
      continue;
    }
    __m256i n[4], coarse[4];
    float scale = amax / 127.0f;
    const float error = Quantize(v, amax, 127.0f, scale, n);
    const float coarse_scale = amax / 125.0f;
    if (Quantize(v, amax, 125.0f, coarse_scale, coarse) < error) {
      scale = coarse_scale;
      for (int i = 0; i < 4; ++i) n[i] = coarse[i];
    }
    const int32_t low = SumLanes(_mm256_add_epi32(n[0], n[1]));
    const int32_t sum = low + SumLanes(_mm256_add_epi32(n[2], n[3]));
    const __m256i bytes =
        _mm256_packs_epi16(_mm256_packs_epi32(n[0], n[1]), _mm256_packs_epi32(n[2], n[3]));
    _mm256_storeu_si256(out, _mm256_permutevar8x32_epi32(bytes, order));
    blocks[b] = {scale, scale * static_cast<float>(sum), -8 * sum, -8 * low};
  }
}

}  // namespace cairn
