// simd16.h with AVX2, FMA and F16C: two ymm, lanes 0-7 and 8-15. Include simd16.h instead.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace cairn {
namespace {

struct F32x16 {
  __m256 lo, hi;
};
struct I32x16 {
  __m256i lo, hi;
};
struct Mask16 {
  __m256i lo, hi;
};

// Sixteen set lanes, then sixteen clear ones: a load at 16 - n is the mask of the first n.
alignas(64) constexpr int32_t kLaneMask[32] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
                                               -1, -1, -1, -1, -1, 0,  0,  0,  0,  0,  0,
                                               0,  0,  0,  0,  0,  0,  0,  0,  0,  0};

CAIRN_SIMD F32x16 Zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
CAIRN_SIMD F32x16 Set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
CAIRN_SIMD F32x16 Like(F32x16, float x) { return Set(x); }
CAIRN_SIMD Mask16 FirstLanes(int n) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(kLaneMask + 16 - n)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kLaneMask + 24 - n))};
}
CAIRN_SIMD F32x16 Load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
CAIRN_SIMD F32x16 LoadN(const float* p, int n) {
  const Mask16 m = FirstLanes(n);
  return {_mm256_maskload_ps(p, m.lo), _mm256_maskload_ps(p + 8, m.hi)};
}
CAIRN_SIMD void Store(float* p, F32x16 a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
CAIRN_SIMD void StoreN(float* p, F32x16 a, int n) {
  const Mask16 m = FirstLanes(n);
  _mm256_maskstore_ps(p, m.lo, a.lo);
  _mm256_maskstore_ps(p + 8, m.hi, a.hi);
}

CAIRN_SIMD F32x16 Add(F32x16 a, F32x16 b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
CAIRN_SIMD F32x16 Sub(F32x16 a, F32x16 b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
CAIRN_SIMD F32x16 Mul(F32x16 a, F32x16 b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
CAIRN_SIMD F32x16 Div(F32x16 a, F32x16 b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
CAIRN_SIMD F32x16 Sqrt(F32x16 a) { return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }
CAIRN_SIMD F32x16 Fma(F32x16 a, F32x16 b, F32x16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
CAIRN_SIMD F32x16 Fnma(F32x16 a, F32x16 b, F32x16 c) {
  return {_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi)};
}
CAIRN_SIMD F32x16 Min(F32x16 a, F32x16 b) {
  return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}
CAIRN_SIMD F32x16 Max(F32x16 a, F32x16 b) {
  return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
CAIRN_SIMD F32x16 Abs(F32x16 a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}
CAIRN_SIMD F32x16 Neg(F32x16 a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_xor_ps(a.lo, sign), _mm256_xor_ps(a.hi, sign)};
}

CAIRN_SIMD Mask16 Less(F32x16 a, F32x16 b) {
  return {_mm256_castps_si256(_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
          _mm256_castps_si256(_mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}
CAIRN_SIMD F32x16 Select(Mask16 m, F32x16 a, F32x16 b) {
  return {_mm256_blendv_ps(b.lo, a.lo, _mm256_castsi256_ps(m.lo)),
          _mm256_blendv_ps(b.hi, a.hi, _mm256_castsi256_ps(m.hi))};
}
CAIRN_SIMD F32x16 FmaN(F32x16 a, F32x16 b, F32x16 c, int n) {
  return Select(FirstLanes(n), Fma(a, b, c), c);
}

CAIRN_SIMD I32x16 AsInt(F32x16 a) { return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }
CAIRN_SIMD F32x16 AsFloat(I32x16 a) {
  return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)};
}
CAIRN_SIMD I32x16 SetInt(I32x16, int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
CAIRN_SIMD I32x16 AddInt(I32x16 a, I32x16 b) {
  return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
CAIRN_SIMD I32x16 SubInt(I32x16 a, I32x16 b) {
  return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)};
}
CAIRN_SIMD I32x16 AndInt(I32x16 a, I32x16 b) {
  return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
}
template <int kBits>
CAIRN_SIMD I32x16 ShiftLeft(I32x16 a) {
  return {_mm256_slli_epi32(a.lo, kBits), _mm256_slli_epi32(a.hi, kBits)};
}
template <int kBits>
CAIRN_SIMD I32x16 ShiftRight(I32x16 a) {
  return {_mm256_srai_epi32(a.lo, kBits), _mm256_srai_epi32(a.hi, kBits)};
}
CAIRN_SIMD F32x16 ToFloat(I32x16 a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
CAIRN_SIMD I32x16 RoundToInt(F32x16 a) {
  return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)};
}
// Two factors 2^(n >> 1) and 2^(n - (n >> 1)), both normal: the first product is exact.
CAIRN_SIMD __m256 ScaleHalfByPow2(__m256 a, __m256 n) {
  const __m256i whole = _mm256_cvtps_epi32(n);
  const __m256i half = _mm256_srai_epi32(whole, 1);
  const __m256i rest = _mm256_sub_epi32(whole, half);
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256i f0 = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
  const __m256i f1 = _mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23);
  return _mm256_mul_ps(_mm256_mul_ps(a, _mm256_castsi256_ps(f0)), _mm256_castsi256_ps(f1));
}
CAIRN_SIMD F32x16 ScaleByPow2(F32x16 a, F32x16 n) {
  return {ScaleHalfByPow2(a.lo, n.lo), ScaleHalfByPow2(a.hi, n.hi)};
}

CAIRN_SIMD F32x16 LoadHalf(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
CAIRN_SIMD F32x16 LoadHalfN(const uint16_t* p, int n) {
  alignas(32) uint16_t lanes[16] = {};
  for (int i = 0; i < n; ++i) lanes[i] = p[i];
  return LoadHalf(lanes);
}
CAIRN_SIMD void StoreHalf(uint16_t* p, F32x16 a) {
  const F32x16 x = Max(Set(-65504.0f), Min(Set(65504.0f), a));
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x.lo, kNearest));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(x.hi, kNearest));
}
CAIRN_SIMD void StoreHalfN(uint16_t* p, F32x16 a, int n) {
  alignas(32) uint16_t lanes[16];
  StoreHalf(lanes, a);
  for (int i = 0; i < n; ++i) p[i] = lanes[i];
}

CAIRN_SIMD F32x16 SwapPairs(F32x16 a) {
  return {_mm256_permute_ps(a.lo, 0xB1), _mm256_permute_ps(a.hi, 0xB1)};
}
CAIRN_SIMD F32x16 LoadTwiceN(const float* p, int n) {
  const __m256 x = _mm256_maskload_ps(p, FirstLanes(n).lo);
  return {_mm256_permutevar8x32_ps(x, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3)),
          _mm256_permutevar8x32_ps(x, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7))};
}

CAIRN_SIMD float ReduceAdd(F32x16 a) {
  const __m256 x8 = _mm256_add_ps(a.lo, a.hi);
  const __m128 x4 = _mm_add_ps(_mm256_castps256_ps128(x8), _mm256_extractf128_ps(x8, 1));
  const __m128 x2 = _mm_add_ps(x4, _mm_movehl_ps(x4, x4));
  return _mm_cvtss_f32(_mm_add_ss(x2, _mm_shuffle_ps(x2, x2, 1)));
}
CAIRN_SIMD float ReduceMax(F32x16 a) {
  const __m256 x8 = _mm256_max_ps(a.lo, a.hi);
  const __m128 x4 = _mm_max_ps(_mm256_castps256_ps128(x8), _mm256_extractf128_ps(x8, 1));
  const __m128 x2 = _mm_max_ps(x4, _mm_movehl_ps(x4, x4));
  return _mm_cvtss_f32(_mm_max_ss(x2, _mm_shuffle_ps(x2, x2, 1)));
}

}  // namespace
}  // namespace cairn
