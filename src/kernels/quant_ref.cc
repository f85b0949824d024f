#include <cstring>

#include "kernels/quant_rows.h"

namespace cairn {

void QuantizeBlocksScalar(const float* x, int64_t count, int8_t* q, ActivationBlock* blocks) {
  for (int64_t b = 0; b < count; ++b, x += 32, q += 32) {
    // Magnitudes are compared as integers, so that a NaN counts as the largest.
    uint32_t amax_bits = 0;
    for (int i = 0; i < 32; ++i) {
      uint32_t bits;
      std::memcpy(&bits, &x[i], sizeof bits);
      bits &= 0x7fffffff;
      amax_bits = bits > amax_bits ? bits : amax_bits;
    }
    float amax;
    std::memcpy(&amax, &amax_bits, sizeof amax);
    if (amax_bits >= 0x7f800000 || amax < 0x1p-100f) {
      const float scale = amax_bits >= 0x7f800000 ? __builtin_nanf("") : 0.0f;
      std::memset(q, 0, 32);
      blocks[b] = {scale, scale, 0, 0};
      continue;
    }
    const float inverse = 127.0f / amax;
    int32_t low = 0;
    int32_t sum = 0;
    for (int i = 0; i < 32; ++i) {
      // Adding 1.5 * 2^23 rounds to an integer, half to even.
      const float shifted = x[i] * inverse + 12582912.0f;
      const int32_t v = static_cast<int32_t>(shifted - 12582912.0f);
      q[i] = static_cast<int8_t>(v);
      sum += v;
      low += i < 16 ? v : 0;
    }
    const float scale = amax / 127.0f;
    blocks[b] = {scale, scale * static_cast<float>(sum), -8 * sum, -8 * low};
  }
}

}  // namespace cairn
