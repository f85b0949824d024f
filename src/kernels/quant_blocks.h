// The blocks of a GGUF file, taken apart: integers, zero point, scales. The one place that knows
// the file's bit order; quant.cc turns them into floats, matmul_pack.cc into panels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/weight_type.h"

namespace cairn {

// One file block. A weight is scale[j] * (u - zero) + minimum of its 32, in the terms of
// BlockScale and BlockMin.
struct FileBlock {
  uint8_t u[256];     // unsigned integers, element order; Q8_0: the signed value + 128
  uint16_t d;         // f16
  uint16_t d_min;     // f16: m of Q4_1 and Q5_1, dmin of Q4_K and Q5_K
  uint8_t scale[16];  // Q4_K, Q5_K: 6 bits per 32; Q6_K: int8 per 16
  uint8_t min[8];     // Q4_K, Q5_K: 6 bits per 32
  uint8_t affine[8];  // affine types: scale and offset as stored
};

// REQUIRES: IsQuantized(type); `block` holds BlockBytes(type).
void ReadFileBlock(WeightType type, const std::byte* block, FileBlock* out);

int ZeroPoint(WeightType type);  // 0, 8, 16, 32 or 128

}  // namespace cairn
