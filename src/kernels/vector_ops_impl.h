// The body of vector_ops_{ref,avx2,avx512}.cc; vector_ops.h says what each function computes.
#pragma once

#include "kernels/vector_math.h"
#include "kernels/vector_ops_levels.h"

namespace cairn {
namespace {

// 1 / sqrt(x) in every lane, both operations IEEE.
CAIRN_SIMD F32x16 InverseSqrt(float x) { return Div(Set(1.0f), Sqrt(Set(x))); }

CAIRN_SIMD F32x16 RmsScale(const float* x, int64_t n, float eps) {
  return InverseSqrt(Dot(x, x, n) / static_cast<float>(n) + eps);
}

template <typename Fn>
CAIRN_SIMD void ForHeads(HeadsSize size, Fn fn) {
  for (int r = 0; r < size.rows; ++r)
    for (int h = 0; h < size.heads; ++h) fn(r, h);
}
CAIRN_SIMD const float* Head(const HeadsIn& x, int r, int h) {
  return x.data + r * x.row_stride + h * x.head_stride;
}
CAIRN_SIMD float* Head(const HeadsOut& x, int r, int h) {
  return x.data + r * x.row_stride + h * x.head_stride;
}

void RmsNorm(HeadsIn xs, const float* w, float eps, HeadsSize size, HeadsOut ys) {
  ForHeads(size, [&](int r, int h) {
    const float* x = Head(xs, r, h);
    float* y = Head(ys, r, h);
    const F32x16 s = RmsScale(x, size.n, eps);
    ForLanes(size.n, [&](auto lanes, int64_t i) {
      lanes.store(y + i, Mul(Mul(lanes.load(x + i), s), lanes.load(w + i)));
    });
  });
}

void L2Norm(HeadsIn xs, float eps, float scale, HeadsSize size, HeadsOut ys) {
  ForHeads(size, [&](int r, int h) {
    const float* x = Head(xs, r, h);
    float* y = Head(ys, r, h);
    const F32x16 s = Div(Set(scale), Sqrt(Set(Dot(x, x, size.n) + eps)));
    ForLanes(size.n, [&](auto lanes, int64_t i) { lanes.store(y + i, Mul(lanes.load(x + i), s)); });
  });
}

void GatedRmsNorm(HeadsIn xs, HeadsIn zs, const float* w, float eps, HeadsSize size, HeadsOut ys) {
  ForHeads(size, [&](int r, int h) {
    const float* x = Head(xs, r, h);
    const float* z = Head(zs, r, h);
    float* y = Head(ys, r, h);
    const F32x16 s = RmsScale(x, size.n, eps);
    ForLanes(size.n, [&](auto lanes, int64_t i) {
      const F32x16 normed = Mul(Mul(lanes.load(x + i), s), lanes.load(w + i));
      lanes.store(y + i, Mul(normed, Silu(lanes.load(z + i))));
    });
  });
}

void SwiGlu(const float* gate_up, int64_t ld, int rows, int64_t n, float* h) {
  for (int r = 0; r < rows; ++r) {
    const float* gate = gate_up + r * ld;
    const float* up = gate + n;
    float* y = h + r * n;
    ForLanes(n, [&](auto lanes, int64_t i) {
      lanes.store(y + i, Mul(Silu(lanes.load(gate + i)), lanes.load(up + i)));
    });
  }
}

void AddInto(const float* y, int64_t count, float* x) {
  ForLanes(count, [&](auto lanes, int64_t i) {
    lanes.store(x + i, Add(lanes.load(x + i), lanes.load(y + i)));
  });
}

void AddBiasRows(const float* bias, int rows, int64_t n, float* x, int64_t ldx) {
  for (int r = 0; r < rows; ++r) AddInto(bias, n, x + r * ldx);
}

void SigmoidGate(HeadsIn gates, HeadsSize size, HeadsOut xs) {
  ForHeads(size, [&](int r, int h) {
    const float* gate = Head(gates, r, h);
    float* x = Head(xs, r, h);
    ForLanes(size.n, [&](auto lanes, int64_t i) {
      lanes.store(x + i, Mul(lanes.load(x + i), Sigmoid(lanes.load(gate + i))));
    });
  });
}

void DeltaGateRows(const float* a, int64_t lda, const float* b, int64_t ldb, const float* a_neg,
                   const float* dt_bias, int rows, int decays, int heads, float* g, float* beta) {
  for (int r = 0; r < rows; ++r) {
    const float* ar = a + r * lda;
    const float* br = b + r * ldb;
    float* gr = g + int64_t{r} * decays;
    float* betar = beta + int64_t{r} * heads;
    ForLanes(decays, [&](auto lanes, int64_t i) {
      const F32x16 dt = Softplus(Add(lanes.load(ar + i), lanes.load(dt_bias + i)));
      lanes.store(gr + i, Exp(Mul(lanes.load(a_neg + i), dt)));
    });
    ForLanes(heads,
             [&](auto lanes, int64_t i) { lanes.store(betar + i, Sigmoid(lanes.load(br + i))); });
  }
}

void ExpWeightBlocks(const float* x, int64_t n, float max, float scale, float* w,
                     float* block_sums) {
  const F32x16 minus_inf = Set(-__builtin_inff()), largest = Set(0x1.fffffep+127f);
  for (int64_t begin = 0; begin < n; begin += 256) {
    F32x16 sum = Zero();
    ForLanes(n - begin < 256 ? n - begin : 256, [&](auto lanes, int64_t i) {
      // In this order of operands NaN becomes -inf, whose Exp is +0.
      const F32x16 sane = Min(Max(lanes.load(x + begin + i), minus_inf), largest);
      const F32x16 weight = Exp(Mul(Sub(sane, Set(max)), Set(scale)));
      lanes.store(w + begin + i, weight);
      sum = lanes.fma(weight, Set(1.0f), sum);
    });
    block_sums[begin / 256] = ReduceAdd(sum);
  }
}

constexpr VectorOpsLevel kVectorOps = {
    .rms_norm = RmsNorm,
    .l2_norm = L2Norm,
    .gated_rms_norm = GatedRmsNorm,
    .swiglu = SwiGlu,
    .add = AddInto,
    .add_bias = AddBiasRows,
    .sigmoid_gate = SigmoidGate,
    .delta_gates = DeltaGateRows,
    .exp_weights = ExpWeightBlocks,
};

}  // namespace
}  // namespace cairn
