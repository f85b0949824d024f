// Weight types of GGUF and the exact conversions between them and float32; int8 activations.
//
// Sources of the block layouts: the GGUF specification and ggml's published block structures (facts
// only). Threads: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace cairn {

enum class WeightType { kF32, kF16, kBF16, kQ8_0, kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ4_K, kQ5_K, kQ6_K };

const char* WeightTypeName(WeightType type);  // "Q4_K", ... as GGUF spells it
std::optional<WeightType> WeightTypeFromGgml(
    uint32_t ggml_type);                 // GGUF tensor type id; nullopt if unsupported
int64_t BlockElements(WeightType type);  // 1, 32 or 256
size_t BlockBytes(WeightType type);
inline bool IsQuantized(WeightType type) { return BlockElements(type) > 1; }
// Bytes of a row of k elements. REQUIRES: k % BlockElements(type) == 0.
size_t RowBytes(WeightType type, int64_t k);

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

// One row in file layout -> float32 [k]. The definition of what each type means.
void DequantizeRow(WeightType type, std::span<const std::byte> row, std::span<float> out);

// int8 form of one row x [k], k % 32 == 0: per block of 32, amax = max |x|; scale = amax / 127;
// q = round-to-nearest-even(x * (127 / amax)) (amax == 0, NaN or inf -> documented in quant.cc);
// sum = sum of q. Equal in bits on every level; a row never sees another row.
struct KernelContext;
void QuantizeRow(const KernelContext& ctx, const float* x, int64_t k, int8_t* q, float* scale,
                 int32_t* sum);

}  // namespace cairn
