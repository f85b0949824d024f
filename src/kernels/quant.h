// Weight types of GGUF and the exact conversions between them and float32; int8 activations.
//
// Sources of the block layouts: the GGUF specification and ggml's published block structures (facts
// only).
//
// Threads: pure functions on the calling thread, QuantizeRow too. Nothing is allocated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "kernels/weight_type.h"

namespace cairn {

const char* WeightTypeName(WeightType type);  // "Q4_K", ... as GGUF spells it
std::optional<WeightType> WeightTypeFromGgml(
    uint32_t ggml_type);                 // GGUF tensor type id; nullopt if unsupported
int64_t BlockElements(WeightType type);  // 1, 32 or 256; of an affine type its group
size_t BlockBytes(WeightType type);      // of such a block in the file
inline bool IsQuantized(WeightType type) { return BlockElements(type) > 1; }
// Bytes of a row of k elements. REQUIRES: k % BlockElements(type) == 0.
size_t RowBytes(WeightType type, int64_t k);

// MLX's affine types: w = scale * u + offset, one scale and offset per group. A row in "file
// layout" here is, group after group: scale, offset, then the integers as MLX packs them (little
// endian, low bits first). Source: mlx.core.quantize.
enum class AffineScale { kF16, kBF16, kF32 };
struct AffineFormat {
  int bits;   // 4 or 8
  int group;  // 32, 64 or 128
  AffineScale scale;
  size_t scale_bytes() const { return scale == AffineScale::kF32 ? 4 : 2; }
};
std::optional<AffineFormat> AffineFormatOf(WeightType type);
std::optional<WeightType> AffineWeightType(const AffineFormat& format);
// A scale or offset as the format stores it.
float AffineNumberAt(const AffineFormat& format, const void* p);

float HalfToFloat(uint16_t h);
// Round to nearest even; values beyond the f16 range saturate to +-65504 (never inf); NaN stays
// NaN.
uint16_t FloatToHalf(float f);
inline float BFloat16ToFloat(uint16_t b) {
  const uint32_t bits = static_cast<uint32_t>(b) << 16;
  float f;
  __builtin_memcpy(&f, &bits, sizeof f);
  return f;
}

// One row in file layout, RowBytes(type, k) of it -> float32 out [k]. The definition of what each
// type means.
void DequantizeRow(WeightType type, std::span<const std::byte> row, std::span<float> out);

// int8 form of one row x [k], k % 32 == 0. Per block of 32, with amax = max |x|:
//   a NaN or an infinity in the block:  scale = NaN (0x7fc00000), q = 0: its products are NaN, and
//                                       no other row sees it;
//   amax < 2^-100:                      scale = 0, q = 0 (127 / amax would overflow);
//   else, for t = 127 and t = 125:      scale = amax / t, q = round-half-even(x * (t / amax)), so
//                                       |q| <= 127; of the two the one with the smaller sum of
//                                       (x - scale q)^2, t = 127 if they are equal. That sum is 8
//                                       lanes (element mod 8) of fma, folded 4, 2, 1.
// blocks [k / 32]. Equal in bits on every level.
struct KernelContext;
void QuantizeRow(const KernelContext& ctx, const float* x, int64_t k, int8_t* q,
                 ActivationBlock* blocks);

}  // namespace cairn
