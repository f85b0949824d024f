// simd16.h without vector instructions: N lanes in an array, N = 16 for kernels, 1 for the scalar
// functions of vector_ops.h. Include simd16.h instead.
#pragma once

#include <cstdint>

namespace cairn {
namespace {

template <int N>
struct FloatLanes {
  float v[N];
};
template <int N>
struct IntLanes {
  int32_t v[N];
};
template <int N>
struct MaskLanes {
  bool v[N];
};
using F32x16 = FloatLanes<16>;
using I32x16 = IntLanes<16>;
using Mask16 = MaskLanes<16>;

template <int N, typename Fn>
CAIRN_SIMD FloatLanes<N> EachLane(Fn fn) {
  FloatLanes<N> r;
  for (int i = 0; i < N; ++i) r.v[i] = fn(i);
  return r;
}
template <int N, typename Fn>
CAIRN_SIMD IntLanes<N> EachIntLane(Fn fn) {
  IntLanes<N> r;
  for (int i = 0; i < N; ++i) r.v[i] = static_cast<int32_t>(fn(i));
  return r;
}

template <int N>
CAIRN_SIMD FloatLanes<N> Like(FloatLanes<N>, float x) {
  return EachLane<N>([&](int) { return x; });
}
CAIRN_SIMD F32x16 Set(float x) { return Like(F32x16{}, x); }
CAIRN_SIMD F32x16 Zero() { return Set(0.0f); }
CAIRN_SIMD Mask16 FirstLanes(int n) {
  Mask16 m;
  for (int i = 0; i < 16; ++i) m.v[i] = i < n;
  return m;
}
CAIRN_SIMD F32x16 LoadN(const float* p, int n) {
  return EachLane<16>([&](int i) { return i < n ? p[i] : 0.0f; });
}
CAIRN_SIMD F32x16 Load(const float* p) { return LoadN(p, 16); }
CAIRN_SIMD void StoreN(float* p, F32x16 a, int n) {
  for (int i = 0; i < n; ++i) p[i] = a.v[i];
}
CAIRN_SIMD void Store(float* p, F32x16 a) { StoreN(p, a, 16); }

template <int N>
CAIRN_SIMD FloatLanes<N> Add(FloatLanes<N> a, FloatLanes<N> b) {
  return EachLane<N>([&](int i) { return a.v[i] + b.v[i]; });
}
template <int N>
CAIRN_SIMD FloatLanes<N> Sub(FloatLanes<N> a, FloatLanes<N> b) {
  return EachLane<N>([&](int i) { return a.v[i] - b.v[i]; });
}
template <int N>
CAIRN_SIMD FloatLanes<N> Mul(FloatLanes<N> a, FloatLanes<N> b) {
  return EachLane<N>([&](int i) { return a.v[i] * b.v[i]; });
}
template <int N>
CAIRN_SIMD FloatLanes<N> Div(FloatLanes<N> a, FloatLanes<N> b) {
  return EachLane<N>([&](int i) { return a.v[i] / b.v[i]; });
}
template <int N>
CAIRN_SIMD FloatLanes<N> Sqrt(FloatLanes<N> a) {
  return EachLane<N>([&](int i) { return __builtin_sqrtf(a.v[i]); });
}
template <int N>
CAIRN_SIMD FloatLanes<N> Fma(FloatLanes<N> a, FloatLanes<N> b, FloatLanes<N> c) {
  return EachLane<N>([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); });
}
template <int N>
CAIRN_SIMD FloatLanes<N> Fnma(FloatLanes<N> a, FloatLanes<N> b, FloatLanes<N> c) {
  return EachLane<N>([&](int i) { return __builtin_fmaf(-a.v[i], b.v[i], c.v[i]); });
}
CAIRN_SIMD F32x16 FmaN(F32x16 a, F32x16 b, F32x16 c, int n) {
  return EachLane<16>(
      [&](int i) { return i < n ? __builtin_fmaf(a.v[i], b.v[i], c.v[i]) : c.v[i]; });
}
template <int N>
CAIRN_SIMD FloatLanes<N> Min(FloatLanes<N> a, FloatLanes<N> b) {
  return EachLane<N>([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
template <int N>
CAIRN_SIMD FloatLanes<N> Max(FloatLanes<N> a, FloatLanes<N> b) {
  return EachLane<N>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
template <int N>
CAIRN_SIMD FloatLanes<N> Abs(FloatLanes<N> a) {
  return EachLane<N>([&](int i) { return __builtin_fabsf(a.v[i]); });
}
template <int N>
CAIRN_SIMD FloatLanes<N> Neg(FloatLanes<N> a) {
  return EachLane<N>([&](int i) { return -a.v[i]; });
}

template <int N>
CAIRN_SIMD MaskLanes<N> Less(FloatLanes<N> a, FloatLanes<N> b) {
  MaskLanes<N> m;
  for (int i = 0; i < N; ++i) m.v[i] = a.v[i] < b.v[i];
  return m;
}
template <int N>
CAIRN_SIMD FloatLanes<N> Select(MaskLanes<N> m, FloatLanes<N> a, FloatLanes<N> b) {
  return EachLane<N>([&](int i) { return m.v[i] ? a.v[i] : b.v[i]; });
}

template <int N>
CAIRN_SIMD IntLanes<N> AsInt(FloatLanes<N> a) {
  IntLanes<N> r;
  __builtin_memcpy(&r, &a, sizeof r);
  return r;
}
template <int N>
CAIRN_SIMD FloatLanes<N> AsFloat(IntLanes<N> a) {
  FloatLanes<N> r;
  __builtin_memcpy(&r, &a, sizeof r);
  return r;
}
template <int N>
CAIRN_SIMD IntLanes<N> SetInt(IntLanes<N>, int32_t x) {
  return EachIntLane<N>([&](int) { return x; });
}
template <int N>
CAIRN_SIMD IntLanes<N> AddInt(IntLanes<N> a, IntLanes<N> b) {
  return EachIntLane<N>(
      [&](int i) { return static_cast<uint32_t>(a.v[i]) + static_cast<uint32_t>(b.v[i]); });
}
template <int N>
CAIRN_SIMD IntLanes<N> SubInt(IntLanes<N> a, IntLanes<N> b) {
  return EachIntLane<N>(
      [&](int i) { return static_cast<uint32_t>(a.v[i]) - static_cast<uint32_t>(b.v[i]); });
}
template <int N>
CAIRN_SIMD IntLanes<N> AndInt(IntLanes<N> a, IntLanes<N> b) {
  return EachIntLane<N>([&](int i) { return a.v[i] & b.v[i]; });
}
template <int kBits, int N>
CAIRN_SIMD IntLanes<N> ShiftLeft(IntLanes<N> a) {
  return EachIntLane<N>([&](int i) { return static_cast<uint32_t>(a.v[i]) << kBits; });
}
template <int kBits, int N>
CAIRN_SIMD IntLanes<N> ShiftRight(IntLanes<N> a) {
  return EachIntLane<N>([&](int i) { return a.v[i] >> kBits; });
}
template <int N>
CAIRN_SIMD FloatLanes<N> ToFloat(IntLanes<N> a) {
  return EachLane<N>([&](int i) { return static_cast<float>(a.v[i]); });
}
// Adding 1.5 * 2^23 leaves the rounded value in the low bits of the sum, without a conversion that
// would be undefined for NaN.
template <int N>
CAIRN_SIMD IntLanes<N> RoundToInt(FloatLanes<N> a) {
  const FloatLanes<N> magic = Like(a, 12582912.0f);
  return SubInt(AsInt(Add(a, magic)), AsInt(magic));
}
template <int N>
CAIRN_SIMD FloatLanes<N> ScaleByPow2(FloatLanes<N> a, FloatLanes<N> n) {
  const IntLanes<N> whole = RoundToInt(n);
  const IntLanes<N> half = ShiftRight<1>(whole);
  const IntLanes<N> bias = SetInt(whole, 127);
  const FloatLanes<N> f0 = AsFloat(ShiftLeft<23>(AddInt(half, bias)));
  const FloatLanes<N> f1 = AsFloat(ShiftLeft<23>(AddInt(SubInt(whole, half), bias)));
  return Mul(Mul(a, f0), f1);
}

CAIRN_SIMD float HalfLane(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t exponent = (h >> 10) & 31u;
  const uint32_t mantissa = h & 1023u;
  uint32_t bits;
  if (exponent == 0) {  // zero and subnormal: mantissa * 2^-24, exact
    const float value = static_cast<float>(mantissa) * 0x1p-24f;
    __builtin_memcpy(&bits, &value, sizeof bits);
  } else if (exponent == 31) {  // infinity; NaN becomes quiet
    bits = 0x7f800000u | (mantissa << 13) | (mantissa != 0 ? 0x400000u : 0u);
  } else {
    bits = ((exponent + 112) << 23) | (mantissa << 13);
  }
  bits |= sign;
  float f;
  __builtin_memcpy(&f, &bits, sizeof f);
  return f;
}
CAIRN_SIMD uint16_t LaneHalf(float f) {
  uint32_t bits;
  __builtin_memcpy(&bits, &f, sizeof bits);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  bits &= 0x7fffffffu;
  if (bits > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | ((bits >> 13) & 0x1ffu));
  if (bits > 0x477fe000u) bits = 0x477fe000u;  // 65504
  if (bits < 0x38800000u) {  // below 2^-14: the ulp of 0.5 is the f16 subnormal step, 2^-24
    float value;
    __builtin_memcpy(&value, &bits, sizeof value);
    value += 0.5f;
    __builtin_memcpy(&bits, &value, sizeof bits);
    return static_cast<uint16_t>(sign | (bits - 0x3f000000u));
  }
  bits += 0xfffu + ((bits >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((bits - (112u << 23)) >> 13));
}
CAIRN_SIMD F32x16 LoadHalfN(const uint16_t* p, int n) {
  return EachLane<16>([&](int i) { return i < n ? HalfLane(p[i]) : 0.0f; });
}
CAIRN_SIMD F32x16 LoadHalf(const uint16_t* p) { return LoadHalfN(p, 16); }
CAIRN_SIMD void StoreHalfN(uint16_t* p, F32x16 a, int n) {
  for (int i = 0; i < n; ++i) p[i] = LaneHalf(a.v[i]);
}
CAIRN_SIMD void StoreHalf(uint16_t* p, F32x16 a) { StoreHalfN(p, a, 16); }

CAIRN_SIMD F32x16 SwapPairs(F32x16 a) {
  return EachLane<16>([&](int i) { return a.v[i ^ 1]; });
}
CAIRN_SIMD F32x16 LoadTwiceN(const float* p, int n) {
  return EachLane<16>([&](int i) { return i / 2 < n ? p[i / 2] : 0.0f; });
}

CAIRN_SIMD float ReduceAdd(F32x16 a) {
  for (int fold = 8; fold > 0; fold /= 2)
    for (int j = 0; j < fold; ++j) a.v[j] = a.v[j] + a.v[j + fold];
  return a.v[0];
}
CAIRN_SIMD float ReduceMax(F32x16 a) {
  for (int fold = 8; fold > 0; fold /= 2)
    for (int j = 0; j < fold; ++j) a.v[j] = a.v[j] > a.v[j + fold] ? a.v[j] : a.v[j + fold];
  return a.v[0];
}

}  // namespace
}  // namespace cairn
