#include "kernels/vector_ops.h"

#include <cstring>

#include "kernels/row_ranges.h"
#include "kernels/vector_ops_levels.h"

namespace cairn {
namespace {

const VectorOpsLevel& Level(CpuLevel level) {
  switch (level) {
    case CpuLevel::kScalar:
      return kVectorOpsRef;
    case CpuLevel::kAvx2:
      return kVectorOpsAvx2;
    case CpuLevel::kAvx512:
      return kVectorOpsAvx512;
  }
  return kVectorOpsRef;
}
const VectorOpsLevel& Level(const KernelContext& ctx) { return Level(ctx.level); }

HeadsIn In(const float* x, int64_t ld, int64_t head_stride, int row) {
  return {x + row * ld, ld, head_stride};
}
HeadsOut Out(float* x, int64_t ld, int64_t head_stride, int row) {
  return {x + row * ld, ld, head_stride};
}

}  // namespace

void RmsNormRows(const KernelContext& ctx, const float* x, const float* w, float eps, int rows,
                 int64_t n, float* y) {
  ForRowRanges(ctx, rows, n, [&](int begin, int end) {
    Level(ctx).rms_norm(In(x, n, n, begin), w, eps, {end - begin, 1, n}, Out(y, n, n, begin));
  });
}

void RmsNorm(CpuLevel level, const float* x, const float* w, float eps, int64_t n, float* y) {
  Level(level).rms_norm(In(x, n, n, 0), w, eps, {1, 1, n}, Out(y, n, n, 0));
}

void RmsNormHeads(const KernelContext& ctx, float* x, int64_t ldx, int64_t head_stride,
                  const float* w, float eps, int rows, int heads, int64_t n) {
  ForRowRanges(ctx, rows, heads * n, [&](int begin, int end) {
    Level(ctx).rms_norm(In(x, ldx, head_stride, begin), w, eps, {end - begin, heads, n},
                        Out(x, ldx, head_stride, begin));
  });
}

void L2NormHeads(const KernelContext& ctx, float* x, int64_t ldx, int64_t head_stride, float eps,
                 float scale, int rows, int heads, int64_t n) {
  ForRowRanges(ctx, rows, heads * n, [&](int begin, int end) {
    Level(ctx).l2_norm(In(x, ldx, head_stride, begin), eps, scale, {end - begin, heads, n},
                       Out(x, ldx, head_stride, begin));
  });
}

void GatedRmsNormHeads(const KernelContext& ctx, const float* x, int64_t ldx, const float* z,
                       int64_t ldz, const float* w, float eps, int rows, int heads, int64_t n,
                       float* y, int64_t ldy) {
  ForRowRanges(ctx, rows, heads * n, [&](int begin, int end) {
    Level(ctx).gated_rms_norm(In(x, ldx, n, begin), In(z, ldz, n, begin), w, eps,
                              {end - begin, heads, n}, Out(y, ldy, n, begin));
  });
}

void SwiGluRows(const KernelContext& ctx, const float* gate_up, int64_t ld, int rows, int64_t n,
                float* h) {
  ForRowRanges(ctx, rows, n, [&](int begin, int end) {
    Level(ctx).swiglu(gate_up + begin * ld, ld, end - begin, n, h + begin * n);
  });
}

void SwiGlu(CpuLevel level, const float* gate_up, int64_t ld, int rows, int64_t n, float* h) {
  Level(level).swiglu(gate_up, ld, rows, n, h);
}

void AddRows(const KernelContext& ctx, float* x, const float* y, int64_t count) {
  constexpr int64_t kPiece = 8192;
  const int pieces = static_cast<int>((count + kPiece - 1) / kPiece);
  ForRowRanges(ctx, pieces, kPiece, [&](int begin, int end) {
    const int64_t last = end * kPiece < count ? end * kPiece : count;
    Level(ctx).add(y + begin * kPiece, last - begin * kPiece, x + begin * kPiece);
  });
}

void AddBias(const KernelContext& ctx, float* x, int64_t ldx, const float* bias, int rows,
             int64_t n) {
  ForRowRanges(ctx, rows, n, [&](int begin, int end) {
    Level(ctx).add_bias(bias, end - begin, n, x + begin * ldx, ldx);
  });
}

void SigmoidGateHeads(const KernelContext& ctx, float* x, int64_t ldx, int64_t x_head_stride,
                      const float* gate, int64_t ldgate, int64_t gate_head_stride, int rows,
                      int heads, int64_t n) {
  ForRowRanges(ctx, rows, heads * n, [&](int begin, int end) {
    Level(ctx).sigmoid_gate(In(gate, ldgate, gate_head_stride, begin), {end - begin, heads, n},
                            Out(x, ldx, x_head_stride, begin));
  });
}

void CopyHeads(const KernelContext& ctx, const float* x, int64_t ldx, int64_t x_head_stride,
               int rows, int heads, int64_t n, float* y, int64_t ldy, int64_t y_head_stride) {
  ForRowRanges(ctx, rows, heads * n, [&](int begin, int end) {
    for (int r = begin; r < end; ++r) {
      for (int h = 0; h < heads; ++h) {
        std::memcpy(y + r * ldy + h * y_head_stride, x + r * ldx + h * x_head_stride,
                    static_cast<size_t>(n) * sizeof(float));
      }
    }
  });
}

void DeltaGates(const KernelContext& ctx, const float* a, int64_t lda, const float* b, int64_t ldb,
                const float* a_neg, const float* dt_bias, int rows, int decays, int heads, float* g,
                float* beta) {
  ForRowRanges(ctx, rows, decays, [&](int begin, int end) {
    Level(ctx).delta_gates(a + begin * lda, lda, b + begin * ldb, ldb, a_neg, dt_bias, end - begin,
                           decays, heads, g + int64_t{begin} * decays,
                           beta + int64_t{begin} * heads);
  });
}

void ExpWeights(CpuLevel level, const float* x, int64_t n, float max, float scale, float* w,
                float* block_sums) {
  Level(level).exp_weights(x, n, max, scale, w, block_sums);
}

}  // namespace cairn
