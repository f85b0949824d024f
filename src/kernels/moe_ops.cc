#include "kernels/moe_ops.h"

#include "base/check.h"
#include "kernels/kernel_faults.h"
#include "kernels/moe_ops_levels.h"
#include "kernels/row_ranges.h"

namespace cairn {
namespace {

const MoeOpsLevel& Level(CpuLevel level) {
  switch (level) {
    case CpuLevel::kScalar:
      return kMoeOpsRef;
    case CpuLevel::kAvx2:
      return kMoeOpsAvx2;
    case CpuLevel::kAvx512:
      return kMoeOpsAvx512;
  }
  return kMoeOpsRef;
}
const MoeOpsLevel& Level(const KernelContext& ctx) { return Level(ctx.level); }

// Keeps ids sorted by falling value; a later id with an equal value stays behind. Comparisons with
// NaN are false, so NaN never pushes a number out, and every id listed is valid.
void ChooseLargest(const float* p, const float* bias, int experts, int used, int32_t* ids) {
  const auto value = [&](int32_t e) { return bias == nullptr ? p[e] : p[e] + bias[e]; };
  int count = 0;
  for (int32_t e = 0; e < experts; ++e) {
    const float candidate = value(e);
    if (count == used && !(candidate > value(ids[used - 1]))) continue;
    int at = count < used ? count++ : used - 1;
    for (; at > 0 && candidate > value(ids[at - 1]); --at) ids[at] = ids[at - 1];
    ids[at] = e;
  }
}

void SortAscending(int32_t* ids, int count) {
  for (int i = 1; i < count; ++i) {
    const int32_t id = ids[i];
    int at = i;
    for (; at > 0 && ids[at - 1] > id; --at) ids[at] = ids[at - 1];
    ids[at] = id;
  }
}

}  // namespace

void RouteExperts(const KernelContext& ctx, const RouterShape& shape, float* logits, int64_t ld,
                  const float* bias, int rows, int32_t* ids, float* weights) {
  CHECK(shape.used >= 1 && shape.used <= shape.experts);
  if (ctx.faults != nullptr &&
      ctx.faults->RouteExperts(ctx, shape, logits, ld, bias, rows, ids, weights))
    return;
  const MoeOpsLevel& level = Level(ctx);
  ForRowRanges(ctx, rows, int64_t{8} * shape.experts, [&](int begin, int end) {
    for (int64_t r = begin; r < end; ++r) {
      float* p = logits + r * ld;
      shape.gate == RouterGate::kSoftmax ? level.softmax(p, shape.experts)
                                         : level.sigmoid(p, shape.experts);
      int32_t* chosen = ids + r * shape.used;
      float* w = weights + r * shape.used;
      ChooseLargest(p, bias, shape.experts, shape.used, chosen);
      SortAscending(chosen, shape.used);
      float sum = 0;
      for (int i = 0; i < shape.used; ++i) sum += w[i] = p[chosen[i]];
      if (shape.renormalise) {
        sum += shape.denominator_add;
        for (int i = 0; i < shape.used; ++i) w[i] /= sum;
      }
      for (int i = 0; i < shape.used; ++i) w[i] *= shape.scale;
    }
  });
}

void CombineExperts(const KernelContext& ctx, const float* y, const int32_t* slots,
                    const float* weights, int rows, int used, int64_t n, const SharedExpert& shared,
                    float* out) {
  ForRowRanges(ctx, rows, n * (used + 1), [&](int begin, int end) {
    for (int64_t r = begin; r < end; ++r) {
      Level(ctx).combine(
          {.y = y,
           .slots = slots + r * used,
           .weights = weights + r * used,
           .used = used,
           .n = n,
           .shared = shared.y == nullptr ? nullptr : shared.y + r * n,
           .gate = shared.gate == nullptr ? nullptr : shared.gate + r * shared.gate_stride,
           .out = out + r * n});
    }
  });
}

void GeGluRows(const KernelContext& ctx, const float* gate_up, int64_t ld, int rows, int64_t n,
               float* h) {
  ForRowRanges(ctx, rows, n, [&](int begin, int end) {
    Level(ctx).geglu(gate_up + begin * ld, ld, end - begin, n, h + begin * n);
  });
}

void GeGlu(CpuLevel level, const float* gate_up, int64_t ld, int rows, int64_t n, float* h) {
  Level(level).geglu(gate_up, ld, rows, n, h);
}

void ScaleRows(const KernelContext& ctx, float* x, float scale, int rows, int64_t n) {
  ForRowRanges(ctx, rows, n, [&](int begin, int end) {
    Level(ctx).scale(x + begin * n, scale, (end - begin) * n);
  });
}

}  // namespace cairn
