// The body of conv1d_{ref,avx2,avx512}.cc; conv1d.h gives the definition.
#pragma once

#include "kernels/conv1d_levels.h"
#include "kernels/vector_math.h"

namespace cairn {
namespace {

// kKernel: the number of taps, or 0 for p.kernel.
template <int kKernel, bool kSilu>
void RunRows(const Conv1dTile& p) {
  const int taps = kKernel == 0 ? p.kernel : kKernel;
  for (int t = 0; t < p.rows; ++t) {
    const float* inputs[kConvKernelMax];  // of tap j: row t - taps + 1 + j
    for (int j = 0; j < taps; ++j) {
      const int row = t - taps + 1 + j;
      inputs[j] = row >= 0 ? p.u + row * p.ldu : p.state + (taps - 1 + row) * p.channels;
    }
    float* y = p.y + t * p.ldy;
    ForLanes(p.count, [&](auto lanes, int64_t c) {
      F32x16 sum = p.bias != nullptr ? lanes.load(p.bias + c) : Zero();
#pragma GCC unroll 8
      for (int j = 0; j < taps; ++j) {
        sum = Fma(lanes.load(p.weights + j * p.channels + c), lanes.load(inputs[j] + c), sum);
      }
      lanes.store(y + c, kSilu ? Silu(sum) : sum);
    });
  }
}

template <bool kSilu>
void RunKernel(const Conv1dTile& p) {
  switch (p.kernel) {
    case 3:
      return RunRows<3, kSilu>(p);
    case 4:
      return RunRows<4, kSilu>(p);
    default:
      return RunRows<0, kSilu>(p);
  }
}

void RunConvTile(const Conv1dTile& p) { p.silu ? RunKernel<true>(p) : RunKernel<false>(p); }

constexpr Conv1dLevel kConv1d = {RunConvTile};

}  // namespace
}  // namespace cairn
