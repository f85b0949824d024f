#include "kernels/gated_delta.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/gated_delta_levels.h"

namespace cairn {
namespace {

const GatedDeltaLevel& Level(const KernelContext& ctx) {
  switch (ctx.level) {
    case CpuLevel::kScalar:
      return kGatedDeltaRef;
    case CpuLevel::kAvx2:
      return kGatedDeltaAvx2;
    case CpuLevel::kAvx512:
      return kGatedDeltaAvx512;
  }
  return kGatedDeltaRef;
}

}  // namespace

int DeltaKeyHead(const GatedDeltaShape& shape, int value_head) {
  if (shape.map == DeltaHeadMap::kTiled) return value_head % shape.key_heads;
  return value_head / (shape.value_heads / shape.key_heads);
}

void GatedDelta(const KernelContext& ctx, const GatedDeltaShape& shape,
                std::span<const RecurrentSlice> slices, const float* q, const float* k,
                int64_t ldqk, const float* v, int64_t ldv, const float* g, const float* beta,
                float* out, int64_t ldout) {
  CHECK(shape.key_dim >= 1 && shape.key_dim <= kDeltaKeyDimMax);
  CHECK(shape.value_dim >= 16 && shape.value_dim % 16 == 0);
  CHECK(shape.key_heads >= 1 && shape.value_heads % shape.key_heads == 0);
  const GatedDeltaLevel& level = Level(ctx);
  const int64_t dk = shape.key_dim;
  const int64_t dv = shape.value_dim;
  const int tiles = static_cast<int>((dv + level.tile_columns - 1) / level.tile_columns);
  const int tasks_per_slice = shape.value_heads * tiles;
  const int slice_count = static_cast<int>(slices.size());
  ctx.pool->ParallelFor(slice_count * tasks_per_slice, [&](int task, int) {
    const RecurrentSlice& slice = slices[task / tasks_per_slice];
    if (slice.row_count == 0) return;
    const int64_t head = task % tasks_per_slice / tiles;
    const int64_t column = static_cast<int64_t>(task % tiles) * level.tile_columns;
    const int64_t key_head = DeltaKeyHead(shape, static_cast<int>(head));
    const int64_t row = slice.row_begin;
    const int64_t state_offset = head * dk * dv + column;
    level.run_tile({
        .q = q + row * ldqk + key_head * dk,
        .k = k + row * ldqk + key_head * dk,
        .ldqk = ldqk,
        .v = v + row * ldv + head * dv + column,
        .ldv = ldv,
        .g = g + row * shape.value_heads + head,
        .beta = beta + row * shape.value_heads + head,
        .ldg = shape.value_heads,
        .out = out + row * ldout + head * dv + column,
        .ldout = ldout,
        .state = slice.state + state_offset,
        .ldstate = dv,
        .state_offset = state_offset,
        .taps = slice.taps.data(),
        .tap_count = static_cast<int>(slice.taps.size()),
        .dk = shape.key_dim,
        .rows = slice.row_count,
        .columns = static_cast<int>(std::min<int64_t>(level.tile_columns, dv - column)),
    });
  });
}

}  // namespace cairn
