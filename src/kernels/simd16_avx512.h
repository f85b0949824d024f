// simd16.h with AVX-512: one zmm. Include simd16.h instead.
#pragma once

// GCC 12 takes its own "undefined" source operands for a mistake (its bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

#include <cstdint>

namespace cairn {
namespace {

struct F32x16 {
  __m512 v;
};
struct I32x16 {
  __m512i v;
};
struct Mask16 {
  __mmask16 v;
};

CAIRN_SIMD F32x16 Zero() { return {_mm512_setzero_ps()}; }
CAIRN_SIMD F32x16 Set(float x) { return {_mm512_set1_ps(x)}; }
CAIRN_SIMD F32x16 Like(F32x16, float x) { return Set(x); }
CAIRN_SIMD Mask16 FirstLanes(int n) { return {static_cast<__mmask16>((1u << n) - 1)}; }
CAIRN_SIMD F32x16 Load(const float* p) { return {_mm512_loadu_ps(p)}; }
CAIRN_SIMD F32x16 LoadN(const float* p, int n) {
  return {_mm512_maskz_loadu_ps(FirstLanes(n).v, p)};
}
CAIRN_SIMD void Store(float* p, F32x16 a) { _mm512_storeu_ps(p, a.v); }
CAIRN_SIMD void StoreN(float* p, F32x16 a, int n) {
  _mm512_mask_storeu_ps(p, FirstLanes(n).v, a.v);
}

CAIRN_SIMD F32x16 Add(F32x16 a, F32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
CAIRN_SIMD F32x16 Sub(F32x16 a, F32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
CAIRN_SIMD F32x16 Mul(F32x16 a, F32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
CAIRN_SIMD F32x16 Div(F32x16 a, F32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
CAIRN_SIMD F32x16 Sqrt(F32x16 a) { return {_mm512_sqrt_ps(a.v)}; }
CAIRN_SIMD F32x16 Fma(F32x16 a, F32x16 b, F32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
CAIRN_SIMD F32x16 Fnma(F32x16 a, F32x16 b, F32x16 c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }
CAIRN_SIMD F32x16 FmaN(F32x16 a, F32x16 b, F32x16 c, int n) {
  return {_mm512_mask3_fmadd_ps(a.v, b.v, c.v, FirstLanes(n).v)};
}
CAIRN_SIMD F32x16 Min(F32x16 a, F32x16 b) { return {_mm512_min_ps(a.v, b.v)}; }
CAIRN_SIMD F32x16 Max(F32x16 a, F32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }
CAIRN_SIMD F32x16 Abs(F32x16 a) { return {_mm512_abs_ps(a.v)}; }
CAIRN_SIMD F32x16 Neg(F32x16 a) { return {_mm512_xor_ps(a.v, _mm512_set1_ps(-0.0f))}; }

CAIRN_SIMD Mask16 Less(F32x16 a, F32x16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
CAIRN_SIMD F32x16 Select(Mask16 m, F32x16 a, F32x16 b) {
  return {_mm512_mask_blend_ps(m.v, b.v, a.v)};
}

CAIRN_SIMD I32x16 AsInt(F32x16 a) { return {_mm512_castps_si512(a.v)}; }
CAIRN_SIMD F32x16 AsFloat(I32x16 a) { return {_mm512_castsi512_ps(a.v)}; }
CAIRN_SIMD I32x16 SetInt(I32x16, int32_t x) { return {_mm512_set1_epi32(x)}; }
CAIRN_SIMD I32x16 AddInt(I32x16 a, I32x16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
CAIRN_SIMD I32x16 SubInt(I32x16 a, I32x16 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
CAIRN_SIMD I32x16 AndInt(I32x16 a, I32x16 b) { return {_mm512_and_si512(a.v, b.v)}; }
template <int kBits>
CAIRN_SIMD I32x16 ShiftLeft(I32x16 a) {
  return {_mm512_slli_epi32(a.v, kBits)};
}
template <int kBits>
CAIRN_SIMD I32x16 ShiftRight(I32x16 a) {
  return {_mm512_srai_epi32(a.v, kBits)};
}
CAIRN_SIMD F32x16 ToFloat(I32x16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
CAIRN_SIMD I32x16 RoundToInt(F32x16 a) { return {_mm512_cvtps_epi32(a.v)}; }
CAIRN_SIMD F32x16 ScaleByPow2(F32x16 a, F32x16 n) { return {_mm512_scalef_ps(a.v, n.v)}; }

CAIRN_SIMD F32x16 LoadHalf(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
CAIRN_SIMD F32x16 LoadHalfN(const uint16_t* p, int n) {
  return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(FirstLanes(n).v, p))};
}
CAIRN_SIMD __m256i HalfBits(F32x16 a) {
  const F32x16 x = Max(Set(-65504.0f), Min(Set(65504.0f), a));
  return _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
CAIRN_SIMD void StoreHalf(uint16_t* p, F32x16 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), HalfBits(a));
}
CAIRN_SIMD void StoreHalfN(uint16_t* p, F32x16 a, int n) {
  _mm256_mask_storeu_epi16(p, FirstLanes(n).v, HalfBits(a));
}

CAIRN_SIMD F32x16 SwapPairs(F32x16 a) { return {_mm512_permute_ps(a.v, 0xB1)}; }
CAIRN_SIMD F32x16 LoadTwiceN(const float* p, int n) {
  const __m256 x = _mm256_maskz_loadu_ps(static_cast<__mmask8>((1u << n) - 1), p);
  const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
  return {_mm512_permutexvar_ps(twice, _mm512_castps256_ps512(x))};
}

CAIRN_SIMD float ReduceAdd(F32x16 a) {
  const __m256 x8 = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 x4 = _mm_add_ps(_mm256_castps256_ps128(x8), _mm256_extractf128_ps(x8, 1));
  const __m128 x2 = _mm_add_ps(x4, _mm_movehl_ps(x4, x4));
  return _mm_cvtss_f32(_mm_add_ss(x2, _mm_shuffle_ps(x2, x2, 1)));
}
CAIRN_SIMD float ReduceMax(F32x16 a) {
  const __m256 x8 = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 x4 = _mm_max_ps(_mm256_castps256_ps128(x8), _mm256_extractf128_ps(x8, 1));
  const __m128 x2 = _mm_max_ps(x4, _mm_movehl_ps(x4, x4));
  return _mm_cvtss_f32(_mm_max_ss(x2, _mm_shuffle_ps(x2, x2, 1)));
}

}  // namespace
}  // namespace cairn
