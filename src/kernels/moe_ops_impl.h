// The body of moe_ops_{ref,avx2,avx512}.cc; moe_ops.h says what each function computes.
#pragma once

#include "kernels/moe_ops_levels.h"
#include "kernels/vector_math.h"

namespace cairn {
namespace {

void SoftmaxRow(float* x, int64_t n) {
  F32x16 lanes_max = Set(-__builtin_inff());
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) lanes_max = Max(Load(x + i), lanes_max);
  if (i < n) {
    const int tail = static_cast<int>(n - i);
    lanes_max =
        Max(Select(FirstLanes(tail), LoadN(x + i, tail), Set(-__builtin_inff())), lanes_max);
  }
  const F32x16 max = Set(ReduceMax(lanes_max));
  F32x16 sum = Zero();
  for (i = 0; i + 16 <= n; i += 16) {
    const F32x16 p = Exp(Sub(Load(x + i), max));
    Store(x + i, p);
    sum = Add(sum, p);
  }
  if (i < n) {
    const int tail = static_cast<int>(n - i);
    const F32x16 p = Select(FirstLanes(tail), Exp(Sub(LoadN(x + i, tail), max)), Zero());
    StoreN(x + i, p, tail);
    sum = Add(sum, p);
  }
  const F32x16 total = Set(ReduceAdd(sum));
  ForLanes(n, [&](auto lanes, int64_t j) { lanes.store(x + j, Div(lanes.load(x + j), total)); });
}

void SigmoidRow(float* x, int64_t n) {
  ForLanes(n, [&](auto lanes, int64_t i) { lanes.store(x + i, Sigmoid(lanes.load(x + i))); });
}

void CombineOneRow(const CombineRow& row) {
  const F32x16 gate = row.gate != nullptr ? Sigmoid(Set(*row.gate)) : Set(1.0f);
  ForLanes(row.n, [&](auto lanes, int64_t c) {
    F32x16 sum = Zero();
    for (int i = 0; i < row.used; ++i) {
      sum = Fma(Set(row.weights[i]), lanes.load(row.y + row.slots[i] * row.n + c), sum);
    }
    if (row.shared != nullptr) sum = Fma(gate, lanes.load(row.shared + c), sum);
    lanes.store(row.out + c, sum);
  });
}

// 2 sqrt(2/pi) (x + 0.044715 x^3) = x (a + b x^2); -inf * 0 would be NaN, so x is kept finite.
CAIRN_SIMD F32x16 GeluTanh(F32x16 x) {
  const F32x16 finite = Max(Set(-0x1.fffffep+127f), x);
  const F32x16 inner = Fma(Mul(finite, finite), Set(0.0713548162726f), Set(1.5957691216057f));
  return Mul(finite, Sigmoid(Mul(finite, inner)));
}

void GeGlu(const float* gate_up, int64_t ld, int rows, int64_t n, float* h) {
  for (int r = 0; r < rows; ++r) {
    const float* gate = gate_up + r * ld;
    const float* up = gate + n;
    float* y = h + r * n;
    ForLanes(n, [&](auto lanes, int64_t i) {
      lanes.store(y + i, Mul(GeluTanh(lanes.load(gate + i)), lanes.load(up + i)));
    });
  }
}

void Scale(float* x, float scale, int64_t n) {
  ForLanes(n,
           [&](auto lanes, int64_t i) { lanes.store(x + i, Mul(lanes.load(x + i), Set(scale))); });
}

constexpr MoeOpsLevel kMoeOps = {
    .softmax = SoftmaxRow,
    .sigmoid = SigmoidRow,
    .combine = CombineOneRow,
    .geglu = GeGlu,
    .scale = Scale,
};

}  // namespace
}  // namespace cairn
