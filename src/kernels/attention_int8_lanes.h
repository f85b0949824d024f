// The integer products of attention over a q8_0 store, sixteen lanes, one interface on every level
// like simd16.h. The sums are exact, so the levels are equal in bits whatever order they take.
//
//   LoadQuads(p)              4 dims of 16 keys, bytes of value + 128
//   StartQuads(bias)          *bias = -128 * sum of the q the sum will run over
//   DotQuads(sum, keys, q)    sum[j] += sum of keys[j][0..3] * q[0..3]
//   LoadPairs(p)              2 keys of 16 dims, int8
//   DotPairs(sum, v, p)       sum[d] += v[d][0] * p[0] + v[d][1] * p[1], p int16
//   StoreInt8(p, a), StoreInt16(p, a)    sixteen lanes, REQUIRES: they fit
//   LoadBFloat16(p)           bfloat16 -> f32, exact
#pragma once

#include "kernels/simd16.h"

namespace cairn {
namespace {

CAIRN_SIMD int32_t FourBytes(const void* p) {
  int32_t x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}

#if defined(__AVX512F__)

// Keeps a sum in its register: without it, g++ 12 copies each one to the stack at every step.
CAIRN_SIMD void Pin(I32x16& a) { asm("" : "+v"(a.v)); }

CAIRN_SIMD I32x16 LoadQuads(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
CAIRN_SIMD I32x16 StartQuads(const int32_t* bias) { return {_mm512_set1_epi32(*bias)}; }
CAIRN_SIMD void DotQuads(I32x16& sum, I32x16 keys, const int8_t* q) {
  sum.v = _mm512_dpbusd_epi32(sum.v, keys.v, _mm512_set1_epi32(FourBytes(q)));
  Pin(sum);
}
CAIRN_SIMD I32x16 LoadPairs(const int8_t* p) {
  return {_mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
CAIRN_SIMD void DotPairs(I32x16& sum, I32x16 v, const int16_t* p) {
  sum.v = _mm512_dpwssd_epi32(sum.v, v.v, _mm512_set1_epi32(FourBytes(p)));
  Pin(sum);
}
CAIRN_SIMD void StoreInt8(int8_t* p, I32x16 a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v));
}
CAIRN_SIMD void StoreInt16(int16_t* p, I32x16 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(a.v));
}
CAIRN_SIMD F32x16 LoadBFloat16(const uint16_t* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return AsFloat({_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16)});
}

#elif defined(__AVX2__)

CAIRN_SIMD void Pin(I32x16& a) { asm("" : "+x"(a.lo), "+x"(a.hi)); }

// Both factors signed: |q| times keys that carry q's sign. No pair of products leaves int16, since
// neither factor exceeds 127 (a key behind the row's position may, and counts for nothing).
CAIRN_SIMD I32x16 LoadQuads(const uint8_t* p) {
  const __m256i flip = _mm256_set1_epi8(-128);
  return {_mm256_xor_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), flip),
          _mm256_xor_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32)), flip)};
}
CAIRN_SIMD I32x16 StartQuads(const int32_t*) {
  return {_mm256_setzero_si256(), _mm256_setzero_si256()};
}
CAIRN_SIMD void DotQuads(I32x16& sum, I32x16 keys, const int8_t* q) {
  const __m256i ones = _mm256_set1_epi16(1);
  const __m256i x = _mm256_set1_epi32(FourBytes(q)), magnitude = _mm256_abs_epi8(x);
  const __m256i lo = _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(keys.lo, x));
  const __m256i hi = _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(keys.hi, x));
  sum.lo = _mm256_add_epi32(sum.lo, _mm256_madd_epi16(lo, ones));
  sum.hi = _mm256_add_epi32(sum.hi, _mm256_madd_epi16(hi, ones));
  Pin(sum);
}
CAIRN_SIMD I32x16 LoadPairs(const int8_t* p) {
  return {_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16)))};
}
CAIRN_SIMD void DotPairs(I32x16& sum, I32x16 v, const int16_t* p) {
  const __m256i x = _mm256_set1_epi32(FourBytes(p));
  sum.lo = _mm256_add_epi32(sum.lo, _mm256_madd_epi16(v.lo, x));
  sum.hi = _mm256_add_epi32(sum.hi, _mm256_madd_epi16(v.hi, x));
  Pin(sum);
}
CAIRN_SIMD __m256i PackInt16(I32x16 a) {
  return _mm256_permute4x64_epi64(_mm256_packs_epi32(a.lo, a.hi), 0xD8);
}
CAIRN_SIMD void StoreInt8(int8_t* p, I32x16 a) {
  const __m256i x = PackInt16(a);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm_packs_epi16(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1)));
}
CAIRN_SIMD void StoreInt16(int16_t* p, I32x16 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), PackInt16(a));
}
CAIRN_SIMD F32x16 LoadBFloat16(const uint16_t* p) {
  const __m128i lo = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  const __m128i hi = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8));
  return AsFloat({_mm256_slli_epi32(_mm256_cvtepu16_epi32(lo), 16),
                  _mm256_slli_epi32(_mm256_cvtepu16_epi32(hi), 16)});
}

#else

struct Quads16 {
  const uint8_t* p;
};
struct Pairs16 {
  const int8_t* p;
};
CAIRN_SIMD Quads16 LoadQuads(const uint8_t* p) { return {p}; }
CAIRN_SIMD I32x16 StartQuads(const int32_t*) { return SetInt(I32x16{}, 0); }
CAIRN_SIMD void DotQuads(I32x16& sum, Quads16 keys, const int8_t* q) {
  for (int i = 0; i < 16; ++i) {
    for (int d = 0; d < 4; ++d) sum.v[i] += (keys.p[4 * i + d] - 128) * q[d];
  }
}
CAIRN_SIMD Pairs16 LoadPairs(const int8_t* p) { return {p}; }
CAIRN_SIMD void DotPairs(I32x16& sum, Pairs16 v, const int16_t* p) {
  for (int i = 0; i < 16; ++i) sum.v[i] += v.p[2 * i] * p[0] + v.p[2 * i + 1] * p[1];
}
CAIRN_SIMD void StoreInt8(int8_t* p, I32x16 a) {
  for (int i = 0; i < 16; ++i) p[i] = static_cast<int8_t>(a.v[i]);
}
CAIRN_SIMD void StoreInt16(int16_t* p, I32x16 a) {
  for (int i = 0; i < 16; ++i) p[i] = static_cast<int16_t>(a.v[i]);
}
CAIRN_SIMD F32x16 LoadBFloat16(const uint16_t* p) {
  return EachLane<16>([&](int i) {
    const uint32_t bits = static_cast<uint32_t>(p[i]) << 16;
    float f;
    __builtin_memcpy(&f, &bits, sizeof f);
    return f;
  });
}

#endif

}  // namespace
}  // namespace cairn
