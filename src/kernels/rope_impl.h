// The body of rope_{ref,avx2,avx512}.cc; rope.h gives the formula.
#pragma once

#include "kernels/rope_levels.h"
#include "kernels/simd16.h"

namespace cairn {
namespace {

template <typename Fn>
CAIRN_SIMD void ForRopeHeads(const RopeHeads& p, Fn fn) {
  for (int r = 0; r < p.rows; ++r) {
    const float* cos = p.cos + int64_t{r} * p.half;
    const float* sin = p.sin + int64_t{r} * p.half;
    for (int h = 0; h < p.heads; ++h) fn(p.x + r * p.ldx + h * p.head_stride, cos, sin);
  }
}

void RotateHalfSplit(const RopeHeads& p) {
  ForRopeHeads(p, [&](float* x, const float* cos, const float* sin) {
    ForLanes(p.half, [&](auto lanes, int64_t i) {
      const F32x16 x0 = lanes.load(x + i);
      const F32x16 x1 = lanes.load(x + p.half + i);
      const F32x16 c = lanes.load(cos + i);
      const F32x16 s = lanes.load(sin + i);
      lanes.store(x + i, Fnma(x1, s, Mul(x0, c)));
      lanes.store(x + p.half + i, Fma(x0, s, Mul(x1, c)));
    });
  });
}

alignas(64) constexpr float kPairSigns[16] = {-1, 1, -1, 1, -1, 1, -1, 1,
                                              -1, 1, -1, 1, -1, 1, -1, 1};

// Eight pairs a step: fma(x1, -s, x0 c) in even lanes, fma(x0, s, x1 c) in odd ones.
void RotateInterleaved(const RopeHeads& p) {
  const F32x16 signs = Load(kPairSigns);
  ForRopeHeads(p, [&](float* x, const float* cos, const float* sin) {
    ForLanes(2 * p.half, [&](auto lanes, int64_t i) {
      const int64_t rest = p.half - i / 2;
      const int pairs = rest < 8 ? static_cast<int>(rest) : 8;
      const F32x16 pair = lanes.load(x + i);
      const F32x16 c = LoadTwiceN(cos + i / 2, pairs);
      const F32x16 s = Mul(LoadTwiceN(sin + i / 2, pairs), signs);
      lanes.store(x + i, Fma(SwapPairs(pair), s, Mul(pair, c)));
    });
  });
}

constexpr RopeLevel kRope = {RotateHalfSplit, RotateInterleaved};

}  // namespace
}  // namespace cairn
