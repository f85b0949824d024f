#include <cstring>

#include "kernels/quant_rows.h"

namespace cairn {
namespace {

struct Candidate {
  float scale;
  float error;  // sum of (x - scale * q)^2
  int32_t q[32];
};

// The block with its largest magnitude at `top`.
Candidate Quantize(const float* x, float amax, float top) {
  Candidate c;
  c.scale = amax / top;
  const float inverse = top / amax;
  float lanes[8] = {};  // error of elements i, i + 8, i + 16, i + 24
  for (int i = 0; i < 32; ++i) {
    // Adding 1.5 * 2^23 rounds to an integer, half to even.
    const float rounded = (x[i] * inverse + 12582912.0f) - 12582912.0f;
    c.q[i] = static_cast<int32_t>(rounded);
    const float e = __builtin_fmaf(-c.scale, rounded, x[i]);
    lanes[i % 8] = __builtin_fmaf(e, e, lanes[i % 8]);
  }
  for (int width = 4; width >= 1; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  c.error = lanes[0];
  return c;
}

}  // namespace

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
    Candidate best = Quantize(x, amax, 127.0f);
    const Candidate coarse = Quantize(x, amax, 125.0f);
    if (coarse.error < best.error) best = coarse;
    int32_t low = 0;
    int32_t sum = 0;
    for (int i = 0; i < 32; ++i) {
      q[i] = static_cast<int8_t>(best.q[i]);
      sum += best.q[i];
      low += i < 16 ? best.q[i] : 0;
    }
    blocks[b] = {best.scale, best.scale * static_cast<float>(sum), -8 * sum, -8 * low};
  }
}

}  // namespace cairn
