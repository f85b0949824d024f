// The body of gated_ops_{ref,avx2,avx512}.cc; gated_ops.h says what each function computes.
#pragma once

#include "kernels/gated_ops_levels.h"
#include "kernels/vector_math.h"

namespace cairn {
namespace {

// 1 / sqrt(mean(x^2) + eps) in every lane, as RMSNorm everywhere has it.
CAIRN_SIMD F32x16 RmsScale(const float* x, int64_t n, float eps) {
  return Div(Set(1.0f), Sqrt(Set(Dot(x, x, n) / static_cast<float>(n) + eps)));
}

CAIRN_SIMD void GateInto(const float* y, const float* z, int64_t n, float* out) {
  ForLanes(n, [&](auto lanes, int64_t i) {
    lanes.store(out + i, Mul(lanes.load(y + i), Silu(lanes.load(z + i))));
  });
}

CAIRN_SIMD void NormInto(const float* x, const float* w, float eps, int64_t n, float* out) {
  const F32x16 s = RmsScale(x, n, eps);
  ForLanes(n, [&](auto lanes, int64_t i) {
    lanes.store(out + i, Mul(Mul(lanes.load(x + i), s), lanes.load(w + i)));
  });
}

CAIRN_SIMD void NormThenGate(const float* y, const float* z, const float* w, float eps, int64_t n,
                             float* out) {
  const F32x16 s = RmsScale(y, n, eps);
  ForLanes(n, [&](auto lanes, int64_t i) {
    const F32x16 normed = Mul(Mul(lanes.load(y + i), s), lanes.load(w + i));
    lanes.store(out + i, Mul(normed, Silu(lanes.load(z + i))));
  });
}

void Gate(GateOrder order, const GatedRows& p) {
  for (int r = 0; r < p.rows; ++r) {
    for (int g = 0; g < p.groups; ++g) {
      const float* y = p.y + r * p.ldy + g * p.n;
      const float* z = p.z + r * p.ldz + g * p.n;
      const float* w = p.w == nullptr ? nullptr : p.w + g * p.n;
      float* out = p.out + r * p.ldout + g * p.n;
      switch (order) {
        case GateOrder::kNoNorm:
          GateInto(y, z, p.n, out);
          break;
        case GateOrder::kGateThenNorm:
          GateInto(y, z, p.n, out);
          NormInto(out, w, p.eps, p.n, out);
          break;
        case GateOrder::kNormThenGate:
          NormThenGate(y, z, w, p.eps, p.n, out);
          break;
      }
    }
  }
}

void AddScaled(const float* y, float scale, int64_t count, float* x) {
  const F32x16 s = Set(scale);
  ForLanes(count, [&](auto lanes, int64_t i) {
    lanes.store(x + i, Fma(s, lanes.load(y + i), lanes.load(x + i)));
  });
}

void ScaleColumnRows(const float* scale, int rows, int64_t n, float* x, int64_t ldx) {
  for (int r = 0; r < rows; ++r) {
    float* row = x + r * ldx;
    ForLanes(n, [&](auto lanes, int64_t i) {
      lanes.store(row + i, Mul(lanes.load(row + i), lanes.load(scale + i)));
    });
  }
}

void ReluSquare(int64_t count, float* x) {
  ForLanes(count, [&](auto lanes, int64_t i) {
    const F32x16 positive = Max(Zero(), lanes.load(x + i));  // in this order NaN passes
    lanes.store(x + i, Mul(positive, positive));
  });
}

constexpr GatedOpsLevel kGatedOps = {Gate, AddScaled, ScaleColumnRows, ReluSquare};

}  // namespace
}  // namespace cairn
