// Plain types shared with files compiled for one instruction set; includes nothing but <cstdint>.
#pragma once

#include <cstdint>

namespace cairn {

enum class WeightType {
  kF32,
  kF16,
  kBF16,
  kQ8_0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  // MLX affine: bits, group, number type of scales and offsets. In this order (quant.cc).
  kAffine4G32F16,
  kAffine4G32BF16,
  kAffine4G32F32,
  kAffine4G64F16,
  kAffine4G64BF16,
  kAffine4G64F32,
  kAffine4G128F16,
  kAffine4G128BF16,
  kAffine4G128F32,
  kAffine8G32F16,
  kAffine8G32BF16,
  kAffine8G32F32,
  kAffine8G64F16,
  kAffine8G64BF16,
  kAffine8G64F32,
  kAffine8G128F16,
  kAffine8G128BF16,
  kAffine8G128F32,
};

// What a kernel needs of one block of 32 int8 activations besides the values. The offsets are the
// block's sums times -8, because every zero point (8, 16, 32, 128) is 8 shifted left.
struct ActivationBlock {
  float scale;         // x ~ scale * q
  float scaled_sum;    // scale * float(sum of q[0..31]), rounded once
  int32_t offset;      // -8 * sum of q[0..31]
  int32_t low_offset;  // -8 * sum of q[0..15]
};

}  // namespace cairn
