#include "kernels/rope.h"

#include "kernels/rope_levels.h"
#include "kernels/row_ranges.h"

namespace cairn {
namespace {

const RopeLevel& Level(const KernelContext& ctx) {
  switch (ctx.level) {
    case CpuLevel::kScalar:
      return kRopeRef;
    case CpuLevel::kAvx2:
      return kRopeAvx2;
    case CpuLevel::kAvx512:
      return kRopeAvx512;
  }
  return kRopeRef;
}

}  // namespace

void ApplyRope(const KernelContext& ctx, const RopeTable& table, const RopeAngles& angles, float* x,
               int64_t ldx, int64_t head_stride, int rows, int heads) {
  const int half = table.half();
  ForRowRanges(ctx, rows, int64_t{heads} * half, [&](int begin, int end) {
    const RopeHeads range = {
        .x = x + begin * ldx,
        .ldx = ldx,
        .head_stride = head_stride,
        .rows = end - begin,
        .heads = heads,
        .cos = angles.cos + int64_t{begin} * half,
        .sin = angles.sin + int64_t{begin} * half,
        .half = half,
    };
    table.pairs == RopePairs::kHalfSplit ? Level(ctx).half_split(range)
                                         : Level(ctx).interleaved(range);
  });
}

}  // namespace cairn
