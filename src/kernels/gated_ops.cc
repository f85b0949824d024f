#include "kernels/gated_ops.h"

#include "base/check.h"
#include "kernels/row_ranges.h"

namespace cairn {
namespace {

const GatedOpsLevel& Level(const KernelContext& ctx) {
  switch (ctx.level) {
    case CpuLevel::kScalar:
      return kGatedOpsRef;
    case CpuLevel::kAvx2:
      return kGatedOpsAvx2;
    case CpuLevel::kAvx512:
      return kGatedOpsAvx512;
  }
  return kGatedOpsRef;
}

constexpr int64_t kPiece = 8192;  // elements of a task of the operations without rows

}  // namespace

void GateRows(const KernelContext& ctx, GateOrder order, const GatedRows& rows) {
  CHECK(rows.w != nullptr || order == GateOrder::kNoNorm);
  ForRowRanges(ctx, rows.rows, rows.groups * rows.n, [&](int begin, int end) {
    GatedRows part = rows;
    part.y += begin * rows.ldy;
    part.z += begin * rows.ldz;
    part.out += begin * rows.ldout;
    part.rows = end - begin;
    Level(ctx).gate(order, part);
  });
}

void AddScaledRows(const KernelContext& ctx, float* x, const float* y, float scale, int64_t count) {
  const int pieces = static_cast<int>((count + kPiece - 1) / kPiece);
  ForRowRanges(ctx, pieces, kPiece, [&](int begin, int end) {
    const int64_t last = end * kPiece < count ? end * kPiece : count;
    Level(ctx).add_scaled(y + begin * kPiece, scale, last - begin * kPiece, x + begin * kPiece);
  });
}

void ScaleColumns(const KernelContext& ctx, float* x, int64_t ldx, const float* scale, int rows,
                  int64_t n) {
  ForRowRanges(ctx, rows, n, [&](int begin, int end) {
    Level(ctx).scale_columns(scale, end - begin, n, x + begin * ldx, ldx);
  });
}

void ReluSquareRows(const KernelContext& ctx, float* x, int rows, int64_t n) {
  ForRowRanges(ctx, rows, n, [&](int begin, int end) {
    Level(ctx).relu_square((end - begin) * n, x + begin * n);
  });
}

}  // namespace cairn
