#include "kernels/quant.h"

#include <array>
#include <cstring>

#include "base/check.h"
#include "kernels/kernel_context.h"
#include "kernels/quant_blocks.h"
#include "kernels/quant_rows.h"

namespace cairn {
namespace {

// ggml type ids and block sizes as the GGUF specification lists them.
struct TypeInfo {
  WeightType type;
  const char* name;
  uint32_t ggml_id;
  int elements;
  int bytes;
  int zero;
};
constexpr uint32_t kNoGgmlId = ~uint32_t{0};
constexpr std::array<TypeInfo, 29> kTypes = {{
    {WeightType::kF32, "F32", 0, 1, 4, 0},
    {WeightType::kF16, "F16", 1, 1, 2, 0},
    {WeightType::kBF16, "BF16", 30, 1, 2, 0},
    {WeightType::kQ8_0, "Q8_0", 8, 32, 34, 128},
    {WeightType::kQ4_0, "Q4_0", 2, 32, 18, 8},
    {WeightType::kQ4_1, "Q4_1", 3, 32, 20, 0},
    {WeightType::kQ5_0, "Q5_0", 6, 32, 22, 16},
    {WeightType::kQ5_1, "Q5_1", 7, 32, 24, 0},
    {WeightType::kQ4_K, "Q4_K", 12, 256, 144, 0},
    {WeightType::kQ5_K, "Q5_K", 13, 256, 176, 0},
    {WeightType::kQ6_K, "Q6_K", 14, 256, 210, 32},
    {WeightType::kAffine4G32F16, "affine4_g32_f16", kNoGgmlId, 32, 20, 0},
    {WeightType::kAffine4G32BF16, "affine4_g32_bf16", kNoGgmlId, 32, 20, 0},
    {WeightType::kAffine4G32F32, "affine4_g32_f32", kNoGgmlId, 32, 24, 0},
    {WeightType::kAffine4G64F16, "affine4_g64_f16", kNoGgmlId, 64, 36, 0},
    {WeightType::kAffine4G64BF16, "affine4_g64_bf16", kNoGgmlId, 64, 36, 0},
    {WeightType::kAffine4G64F32, "affine4_g64_f32", kNoGgmlId, 64, 40, 0},
    {WeightType::kAffine4G128F16, "affine4_g128_f16", kNoGgmlId, 128, 68, 0},
    {WeightType::kAffine4G128BF16, "affine4_g128_bf16", kNoGgmlId, 128, 68, 0},
    {WeightType::kAffine4G128F32, "affine4_g128_f32", kNoGgmlId, 128, 72, 0},
    {WeightType::kAffine8G32F16, "affine8_g32_f16", kNoGgmlId, 32, 36, 0},
    {WeightType::kAffine8G32BF16, "affine8_g32_bf16", kNoGgmlId, 32, 36, 0},
    {WeightType::kAffine8G32F32, "affine8_g32_f32", kNoGgmlId, 32, 40, 0},
    {WeightType::kAffine8G64F16, "affine8_g64_f16", kNoGgmlId, 64, 68, 0},
    {WeightType::kAffine8G64BF16, "affine8_g64_bf16", kNoGgmlId, 64, 68, 0},
    {WeightType::kAffine8G64F32, "affine8_g64_f32", kNoGgmlId, 64, 72, 0},
    {WeightType::kAffine8G128F16, "affine8_g128_f16", kNoGgmlId, 128, 132, 0},
    {WeightType::kAffine8G128BF16, "affine8_g128_bf16", kNoGgmlId, 128, 132, 0},
    {WeightType::kAffine8G128F32, "affine8_g128_f32", kNoGgmlId, 128, 136, 0},
}};

const TypeInfo& Info(WeightType type) {
  const TypeInfo& info = kTypes[static_cast<size_t>(type)];
  CHECK(info.type == type);
  return info;
}

uint16_t Read16(const uint8_t* p) { return static_cast<uint16_t>(p[0] | p[1] << 8); }

// 16 bytes -> 32 values: low nibbles are elements 0..15, high nibbles 16..31.
void ReadNibbles(const uint8_t* qs, uint8_t* u) {
  for (int j = 0; j < 16; ++j) {
    u[j] = qs[j] & 15;
    u[j + 16] = qs[j] >> 4;
  }
}

void AddFifthBits(const uint8_t* qh, uint8_t* u) {
  const uint32_t bits = qh[0] | qh[1] << 8 | qh[2] << 16 | static_cast<uint32_t>(qh[3]) << 24;
  for (int j = 0; j < 32; ++j) u[j] |= (bits >> j & 1) << 4;
}

// The 12 bytes of a Q4_K or Q5_K block: eight 6-bit scales and eight 6-bit minima.
void ReadSixBitScales(const uint8_t* s, FileBlock* out) {
  for (int j = 0; j < 4; ++j) {
    out->scale[j] = s[j] & 63;
    out->min[j] = s[j + 4] & 63;
    out->scale[j + 4] = static_cast<uint8_t>((s[j + 8] & 15) | (s[j] >> 6) << 4);
    out->min[j + 4] = static_cast<uint8_t>((s[j + 8] >> 4) | (s[j + 4] >> 6) << 4);
  }
}

// 128 bytes -> 256 values: chunk c of 32 bytes holds sub-block 2c (low) and 2c + 1 (high nibbles).
void ReadKNibbles(const uint8_t* qs, uint8_t* u) {
  for (int c = 0; c < 4; ++c) {
    for (int l = 0; l < 32; ++l) {
      u[64 * c + l] = qs[32 * c + l] & 15;
      u[64 * c + 32 + l] = qs[32 * c + l] >> 4;
    }
  }
}

void ReadSixBits(const uint8_t* ql, const uint8_t* qh, uint8_t* u) {
  for (int half = 0; half < 2; ++half, ql += 64, qh += 32, u += 128) {
    for (int l = 0; l < 32; ++l) {
      u[l] = static_cast<uint8_t>((ql[l] & 15) | (qh[l] & 3) << 4);
      u[l + 32] = static_cast<uint8_t>((ql[l + 32] & 15) | (qh[l] >> 2 & 3) << 4);
      u[l + 64] = static_cast<uint8_t>(ql[l] >> 4 | (qh[l] >> 4 & 3) << 4);
      u[l + 96] = static_cast<uint8_t>(ql[l + 32] >> 4 | (qh[l] >> 6) << 4);
    }
  }
}

void DequantizeBlock(WeightType type, const std::byte* block, float* out) {
  FileBlock b;
  ReadFileBlock(type, block, &b);
  if (const auto affine = AffineFormatOf(type)) {
    const float scale = AffineNumberAt(*affine, b.affine);
    const float offset = AffineNumberAt(*affine, b.affine + affine->scale_bytes());
    for (int i = 0; i < affine->group; ++i) out[i] = scale * static_cast<float>(b.u[i]) + offset;
    return;
  }
  const int zero = Info(type).zero;
  const float d = HalfToFloat(b.d);
  const float m = HalfToFloat(b.d_min);
  for (int i = 0; i < Info(type).elements; ++i) {
    const float v = static_cast<float>(b.u[i] - zero);
    switch (type) {
      case WeightType::kQ4_1:
      case WeightType::kQ5_1:
        out[i] = d * v + m;
        break;
      case WeightType::kQ4_K:
      case WeightType::kQ5_K:
        out[i] = d * b.scale[i / 32] * v - m * b.min[i / 32];
        break;
      case WeightType::kQ6_K:
        out[i] = d * static_cast<int8_t>(b.scale[i / 16]) * v;
        break;
      default:
        out[i] = d * v;
    }
  }
}

}  // namespace

const char* WeightTypeName(WeightType type) { return Info(type).name; }

std::optional<WeightType> WeightTypeFromGgml(uint32_t ggml_type) {
  for (const TypeInfo& info : kTypes) {
    if (info.ggml_id == ggml_type && ggml_type != kNoGgmlId) return info.type;
  }
  return std::nullopt;
}

std::optional<AffineFormat> AffineFormatOf(WeightType type) {
  const int i = static_cast<int>(type) - static_cast<int>(WeightType::kAffine4G32F16);
  if (i < 0) return std::nullopt;
  return AffineFormat{i < 9 ? 4 : 8, 32 << i % 9 / 3, static_cast<AffineScale>(i % 3)};
}

std::optional<WeightType> AffineWeightType(const AffineFormat& format) {
  for (const TypeInfo& info : kTypes) {
    const auto f = AffineFormatOf(info.type);
    if (f && f->bits == format.bits && f->group == format.group && f->scale == format.scale)
      return info.type;
  }
  return std::nullopt;
}

float AffineNumberAt(const AffineFormat& format, const void* p) {
  if (format.scale == AffineScale::kF32) {
    float f;
    std::memcpy(&f, p, sizeof f);
    return f;
  }
  uint16_t bits;
  std::memcpy(&bits, p, sizeof bits);
  return format.scale == AffineScale::kF16 ? HalfToFloat(bits) : BFloat16ToFloat(bits);
}

int64_t BlockElements(WeightType type) { return Info(type).elements; }
size_t BlockBytes(WeightType type) { return static_cast<size_t>(Info(type).bytes); }
int ZeroPoint(WeightType type) { return Info(type).zero; }

size_t RowBytes(WeightType type, int64_t k) {
  CHECK(k >= 0 && k % BlockElements(type) == 0);
  return static_cast<size_t>(k / BlockElements(type)) * BlockBytes(type);
}

float HalfToFloat(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16;
  const uint32_t magnitude = h & 0x7fff;
  uint32_t bits;
  float f;
  if (magnitude >= 0x7c00) {  // inf, NaN (made quiet, as vcvtph2ps does)
    bits = 0x7f800000 | (magnitude & 0x3ff) << 13 | (magnitude > 0x7c00 ? 0x400000 : 0);
  } else if (magnitude >= 0x400) {
    bits = (magnitude << 13) + ((127 - 15) << 23);
  } else {  // subnormal: magnitude * 2^-24, exact
    const float small = static_cast<float>(magnitude) * 0x1p-24f;
    std::memcpy(&bits, &small, sizeof bits);
  }
  bits |= sign;
  std::memcpy(&f, &bits, sizeof f);
  return f;
}

uint16_t FloatToHalf(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, sizeof bits);
  const uint32_t sign = bits >> 16 & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  uint32_t half;
  if (magnitude > 0x7f800000) {
    half = 0x7e00 | (magnitude >> 13 & 0x3ff);
  } else if (magnitude >= 0x477ff000) {  // >= 65520 would round to infinity
    half = 0x7bff;
  } else if (magnitude >= 0x38800000) {  // normal: round the low 13 bits half to even
    half = (magnitude + 0xfff + (magnitude >> 13 & 1) - ((127 - 15) << 23)) >> 13;
  } else {  // subnormal: adding 0.5 leaves the value in units of 2^-24 in the low bits
    float a;
    std::memcpy(&a, &magnitude, sizeof a);
    a += 0.5f;
    std::memcpy(&half, &a, sizeof half);
    half -= 0x3f000000;
  }
  return static_cast<uint16_t>(half | sign);
}

void ReadFileBlock(WeightType type, const std::byte* block, FileBlock* out) {
  const uint8_t* p = reinterpret_cast<const uint8_t*>(block);
  if (const auto affine = AffineFormatOf(type)) {
    const size_t header = 2 * affine->scale_bytes();
    std::memcpy(out->affine, p, header);
    for (int i = 0; i < affine->group; ++i) {
      out->u[i] = affine->bits == 8 ? p[header + i] : p[header + i / 2] >> (i % 2 * 4) & 15;
    }
    return;
  }
  out->d = Read16(p);
  out->d_min = 0;
  switch (type) {
    case WeightType::kQ8_0:
      for (int j = 0; j < 32; ++j) out->u[j] = p[2 + j] ^ 0x80;
      return;
    case WeightType::kQ4_0:
      return ReadNibbles(p + 2, out->u);
    case WeightType::kQ4_1:
      out->d_min = Read16(p + 2);
      return ReadNibbles(p + 4, out->u);
    case WeightType::kQ5_0:
      ReadNibbles(p + 6, out->u);
      return AddFifthBits(p + 2, out->u);
    case WeightType::kQ5_1:
      out->d_min = Read16(p + 2);
      ReadNibbles(p + 8, out->u);
      return AddFifthBits(p + 4, out->u);
    case WeightType::kQ4_K:
      out->d_min = Read16(p + 2);
      ReadSixBitScales(p + 4, out);
      return ReadKNibbles(p + 16, out->u);
    case WeightType::kQ5_K:
      out->d_min = Read16(p + 2);
      ReadSixBitScales(p + 4, out);
      ReadKNibbles(p + 48, out->u);
      for (int i = 0; i < 256; ++i) out->u[i] |= (p[16 + i % 32] >> i / 32 & 1) << 4;
      return;
    case WeightType::kQ6_K:
      out->d = Read16(p + 208);
      std::memcpy(out->scale, p + 192, 16);
      return ReadSixBits(p, p + 128, out->u);
    default:
      CHECK(IsQuantized(type));
  }
}

void DequantizeRow(WeightType type, std::span<const std::byte> row, std::span<float> out) {
  const int64_t k = static_cast<int64_t>(out.size());
  CHECK(row.size() == RowBytes(type, k));
  const std::byte* p = row.data();
  if (type == WeightType::kF32) {
    std::memcpy(out.data(), p, row.size());
    return;
  }
  if (!IsQuantized(type)) {
    for (int64_t i = 0; i < k; ++i) {
      uint16_t v;
      std::memcpy(&v, p + 2 * i, sizeof v);
      out[i] = type == WeightType::kF16 ? HalfToFloat(v) : BFloat16ToFloat(v);
    }
    return;
  }
  const int64_t elements = BlockElements(type);
  for (int64_t i = 0; i < k; i += elements, p += BlockBytes(type)) {
    DequantizeBlock(type, p, out.data() + i);
  }
}

void QuantizeRow(const KernelContext& ctx, const float* x, int64_t k, int8_t* q,
                 ActivationBlock* blocks) {
  CHECK(k % 32 == 0);
#if defined(__x86_64__)
  if (ctx.level != CpuLevel::kScalar) return QuantizeBlocksAvx2(x, k / 32, q, blocks);
#endif
  QuantizeBlocksScalar(x, k / 32, q, blocks);
}

}  // namespace cairn
