#include "kernels/norm_activations.h"

#include "kernels/kernel_faults.h"
#include "kernels/row_ranges.h"
#include "kernels/vector_ops.h"

namespace cairn {

Activations NormActivations(const KernelContext& ctx, const float* x, const float* w, float eps,
                            int rows, int64_t k, float* y, std::span<std::byte> workspace) {
  if (ctx.faults != nullptr) {  // which may want all rows to quantise at once
    RmsNormRows(ctx, x, w, eps, rows, k, y);
    return PrepareActivations(ctx, y, rows, k, workspace);
  }
  const ActivationSpace space = CarveActivations(rows, k, workspace);
  ForRowRanges(ctx, rows, 2 * k, [&](int begin, int end) {
    for (int64_t r = begin; r < end; ++r) {
      RmsNorm(ctx.level, x + r * k, w, eps, k, y + r * k);
      QuantizeRow(ctx, y + r * k, k, space.q + r * k, space.blocks + r * (k / 32));
    }
  });
  return {rows, k, y, space.q, space.blocks};
}

}  // namespace cairn
