// The body of short_conv_{ref,avx2,avx512}.cc; short_conv.h gives the definition.
#pragma once

#include "kernels/short_conv_levels.h"
#include "kernels/simd16.h"

namespace cairn {
namespace {

// One row. An earlier row's product is computed again instead of kept: it has the same bits, and
// rows of a tile are in L1. `from_state`: taps that read the state.
template <int kKernel>
void RunShortConvRow(const ShortConvTile& p, int t) {
  const int taps = kKernel == 0 ? p.kernel : kKernel;
  const int from_state = t < taps - 1 ? taps - 1 - t : 0;
  const float* c_row = p.c + t * p.ld;
  float* y = p.y + t * p.ldy;
  ForLanes(p.count, [&](auto lanes, int64_t c) {
    F32x16 sum = p.bias != nullptr ? lanes.load(p.bias + c) : Zero();
    const auto add = [&](int j, F32x16 s) {
      sum = Fma(lanes.load(p.weights + j * p.channels + c), s, sum);
    };
    for (int j = 0; j < from_state; ++j) add(j, lanes.load(p.state + (t + j) * p.channels + c));
    for (int j = from_state; j < taps; ++j) {
      const int64_t at = (t - taps + 1 + j) * p.ld + c;
      add(j, Mul(lanes.load(p.b + at), lanes.load(p.u + at)));
    }
    lanes.store(y + c, Mul(lanes.load(c_row + c), sum));
  });
}

template <int kKernel>
void RunShortConvRows(const ShortConvTile& p) {
  for (int t = 0; t < p.rows; ++t) RunShortConvRow<kKernel>(p, t);
}

void RunShortConvTile(const ShortConvTile& p) {
  p.kernel == 3 ? RunShortConvRows<3>(p) : RunShortConvRows<0>(p);
}

constexpr ShortConvLevel kShortConv = {RunShortConvTile};

}  // namespace
}  // namespace cairn
