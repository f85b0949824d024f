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

struct DeltaCall {
  const GatedDeltaLevel& level;
  const GatedDeltaShape& shape;
  std::span<const RecurrentSlice> slices;
  const float *q, *k;
  int64_t ldqk;
  const float* v;
  int64_t ldv;
  const float *g, *beta;
  float* out;
  int64_t ldout;
};

int TileColumns(const DeltaCall& call, const RecurrentSlice& slice) {
  return slice.row_count == 1 ? kDeltaSingleRowColumns : call.level.tile_columns;
}

int TileCount(const DeltaCall& call, const RecurrentSlice& slice) {
  const int columns = TileColumns(call, slice);
  return slice.row_count == 0 ? 0 : (call.shape.value_dim + columns - 1) / columns;
}

// Tasks for `heads` heads. Single rows stream their state through once: neighbouring heads on two
// cores then fetch each other's lines ahead (measured: 1.3 ms a token for single heads, 0.8 for
// pairs, 0.7 for halves), so each thread gets few, long ranges.
int HeadTasks(std::span<const RecurrentSlice> slices, int heads, int threads) {
  for (const RecurrentSlice& slice : slices) {
    if (slice.row_count > 1) return heads;
  }
  constexpr int kHeadsPerTask = 16;
  return std::clamp(heads / kHeadsPerTask, threads, heads);
}

// next_state: of the head this thread does next, or null.
void RunTile(const DeltaCall& call, const RecurrentSlice& slice, int64_t head, int tile,
             const float* next_state) {
  const int64_t dk = call.shape.key_dim;
  const int64_t dv = call.shape.value_dim;
  const int64_t columns = TileColumns(call, slice);
  const int64_t column = tile * columns;
  const int64_t key_head = DeltaKeyHead(call.shape, static_cast<int>(head));
  const int64_t row = slice.row_begin;
  const int64_t state_offset = head * dk * dv + column;
  const bool channel_decay = call.shape.decay == DeltaDecay::kPerKeyChannel;
  const int64_t decays = call.shape.decays();
  call.level.run_tile({
      .q = call.q + row * call.ldqk + key_head * dk,
      .k = call.k + row * call.ldqk + key_head * dk,
      .ldqk = call.ldqk,
      .v = call.v + row * call.ldv + head * dv + column,
      .ldv = call.ldv,
      .g = call.g + row * decays + head * (channel_decay ? dk : 1),
      .ldg = decays,
      .beta = call.beta + row * call.shape.value_heads + head,
      .ldbeta = call.shape.value_heads,
      .out = call.out + row * call.ldout + head * dv + column,
      .ldout = call.ldout,
      .state = slice.state + state_offset,
      .ldstate = dv,
      .next_state = next_state == nullptr ? nullptr : next_state + column,
      .state_offset = state_offset,
      .taps = slice.taps.data(),
      .tap_count = static_cast<int>(slice.taps.size()),
      .channel_decay = channel_decay,
      .dk = call.shape.key_dim,
      .rows = slice.row_count,
      .columns = static_cast<int>(std::min<int64_t>(columns, dv - column)),
  });
}

float* HeadState(const DeltaCall& call, int head) {  // of all slices' heads in order
  const int heads = call.shape.value_heads;
  const int64_t head_floats = int64_t{call.shape.key_dim} * call.shape.value_dim;
  return call.slices[static_cast<size_t>(head / heads)].state + head % heads * head_floats;
}

void RunHead(const DeltaCall& call, int head, bool next_follows) {
  const int heads = call.shape.value_heads;
  const RecurrentSlice& slice = call.slices[static_cast<size_t>(head / heads)];
  const float* next_state = next_follows ? HeadState(call, head + 1) : nullptr;
  for (int tile = 0; tile < TileCount(call, slice); ++tile)
    RunTile(call, slice, head % heads, tile, next_state);
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
  CHECK(TapsAreValid(slices));
  const DeltaCall call = {Level(ctx), shape, slices, q, k, ldqk, v, ldv, g, beta, out, ldout};
  const int threads = ctx.pool->thread_count();
  const int heads = static_cast<int>(slices.size()) * shape.value_heads;
  if (heads >= 2 * threads) {
    const int tasks = HeadTasks(slices, heads, threads);
    ctx.pool->ParallelFor(tasks, [&](int task, int) {
      const int end = static_cast<int>(int64_t{heads} * (task + 1) / tasks);
      for (int i = static_cast<int>(int64_t{heads} * task / tasks); i < end; ++i)
        RunHead(call, i, i + 1 < end);
    });
    return;
  }
  for (const RecurrentSlice& slice : slices) {
    const int tiles = TileCount(call, slice);
    ctx.pool->ParallelFor(shape.value_heads * tiles, [&](int task, int) {
      RunTile(call, slice, task / tiles, task % tiles, nullptr);
    });
  }
}

}  // namespace cairn
