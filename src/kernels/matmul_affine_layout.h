// Internal: panels of MLX's affine types, w = scale * u + offset per group of 32, 64 or 128. Like
// the other types (matmul_layout.h): groups of 1, 2 or 4 blocks, each a header of 32 scales and 32
// offsets in the file's own number type, then its blocks. Everything lies in an anonymous
// namespace.
#pragma once

#include "kernels/matmul_layout.h"

namespace cairn {
namespace {

template <int bits, int group, AffineNumber number>
struct AffineLayout {
  static constexpr int kBits = bits;
  static constexpr int kZero = 0;
  static constexpr int kZeroShift = 0;
  static constexpr bool kMin = true;
  static constexpr Scales kScales = Scales::kAffine;
  static constexpr bool kHalves = false;
  static constexpr AffineNumber kNumber = number;
  static constexpr int kNumberBytes = number == AffineNumber::kF32 ? 4 : 2;
  static constexpr int kGroup = group / kBlockK;  // blocks
  static constexpr int kBiasOffset = kPanelColumns * kNumberBytes;
  static constexpr int kHeaderBytes = 2 * kBiasOffset;
  static constexpr int kBlockBytes = bits * 128;
  static constexpr int kGroupBytes = kHeaderBytes + kGroup * kBlockBytes;
};

// Calls fn.template operator()<F>() with the layout of an affine type.
template <typename Fn>
inline void WithAffineFormat(WeightType type, Fn&& fn) {
  switch (type) {
    case WeightType::kAffine4G32F16:
      return fn.template operator()<AffineLayout<4, 32, AffineNumber::kF16>>();
    case WeightType::kAffine4G32BF16:
      return fn.template operator()<AffineLayout<4, 32, AffineNumber::kBF16>>();
    case WeightType::kAffine4G32F32:
      return fn.template operator()<AffineLayout<4, 32, AffineNumber::kF32>>();
    case WeightType::kAffine4G64F16:
      return fn.template operator()<AffineLayout<4, 64, AffineNumber::kF16>>();
    case WeightType::kAffine4G64BF16:
      return fn.template operator()<AffineLayout<4, 64, AffineNumber::kBF16>>();
    case WeightType::kAffine4G64F32:
      return fn.template operator()<AffineLayout<4, 64, AffineNumber::kF32>>();
    case WeightType::kAffine4G128F16:
      return fn.template operator()<AffineLayout<4, 128, AffineNumber::kF16>>();
    case WeightType::kAffine4G128BF16:
      return fn.template operator()<AffineLayout<4, 128, AffineNumber::kBF16>>();
    case WeightType::kAffine4G128F32:
      return fn.template operator()<AffineLayout<4, 128, AffineNumber::kF32>>();
    case WeightType::kAffine8G32F16:
      return fn.template operator()<AffineLayout<8, 32, AffineNumber::kF16>>();
    case WeightType::kAffine8G32BF16:
      return fn.template operator()<AffineLayout<8, 32, AffineNumber::kBF16>>();
    case WeightType::kAffine8G32F32:
      return fn.template operator()<AffineLayout<8, 32, AffineNumber::kF32>>();
    case WeightType::kAffine8G64F16:
      return fn.template operator()<AffineLayout<8, 64, AffineNumber::kF16>>();
    case WeightType::kAffine8G64BF16:
      return fn.template operator()<AffineLayout<8, 64, AffineNumber::kBF16>>();
    case WeightType::kAffine8G64F32:
      return fn.template operator()<AffineLayout<8, 64, AffineNumber::kF32>>();
    case WeightType::kAffine8G128F16:
      return fn.template operator()<AffineLayout<8, 128, AffineNumber::kF16>>();
    case WeightType::kAffine8G128BF16:
      return fn.template operator()<AffineLayout<8, 128, AffineNumber::kBF16>>();
    case WeightType::kAffine8G128F32:
      return fn.template operator()<AffineLayout<8, 128, AffineNumber::kF32>>();
    default:
      return;
  }
}

}  // namespace
}  // namespace cairn
