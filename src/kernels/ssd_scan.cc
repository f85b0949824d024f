#include "kernels/ssd_scan.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/kernel_faults.h"
#include "kernels/row_ranges.h"
#include "kernels/ssd_scan_levels.h"

namespace cairn {
namespace {

const SsdScanLevel& Level(const KernelContext& ctx) {
  switch (ctx.level) {
    case CpuLevel::kScalar:
      return kSsdScanRef;
    case CpuLevel::kAvx2:
      return kSsdScanAvx2;
    case CpuLevel::kAvx512:
      return kSsdScanAvx512;
  }
  return kSsdScanRef;
}

struct ScanCall {
  const SsdScanLevel& level;
  const SsdShape& shape;
  std::span<const RecurrentSlice> slices;
  const float *u, *b, *c;
  int64_t ld;
  const float *dt, *decay, *d;
  float* out;
  int64_t ldout;

  int head_vectors() const { return (shape.head_dim + 15) / 16; }
  int group_vectors() const { return shape.heads / shape.groups * head_vectors(); }
  int group_tiles() const {
    return (group_vectors() + level.tile_vectors - 1) / level.tile_vectors;
  }
  int tiles() const { return shape.groups * group_tiles(); }  // of a slice
};

struct VectorPlace {
  int head;
  int channel;  // in the head
  int64_t state_offset;
};

// Vector `index` of group `group`.
VectorPlace PlaceOf(const ScanCall& call, int group, int index) {
  const SsdShape& s = call.shape;
  const int head = group * (s.heads / s.groups) + index / call.head_vectors();
  const int channel = index % call.head_vectors() * 16;
  return {head, channel, int64_t{head} * s.state_dim * s.head_dim + channel};
}

// Tile `index` of all slices' tiles in order. next_follows: this thread then does the next one.
void RunTile(const ScanCall& call, int index, bool next_follows) {
  const SsdShape& s = call.shape;
  const RecurrentSlice& slice = call.slices[static_cast<size_t>(index / call.tiles())];
  if (slice.row_count == 0) return;
  const int in_slice = index % call.tiles();
  const int group = in_slice / call.group_tiles();
  const int first = in_slice % call.group_tiles() * call.level.tile_vectors;
  const int64_t row = slice.row_begin;
  SsdTile tile = {
      .vectors = {},
      .vector_count = std::min(call.level.tile_vectors, call.group_vectors() - first),
      .whole = s.head_dim % 16 == 0,
      .b = call.b + row * call.ld + int64_t{group} * s.state_dim,
      .c = call.c + row * call.ld + int64_t{group} * s.state_dim,
      .ld = call.ld,
      .ldg = s.heads,
      .ldout = call.ldout,
      .ldstate = s.head_dim,
      .taps = slice.taps.data(),
      .tap_count = static_cast<int>(slice.taps.size()),
      .states = s.state_dim,
      .rows = slice.row_count,
  };
  // The next tile's states lie right behind this one's (a group's heads are neighbours).
  const bool fetch = next_follows && first + 2 * call.level.tile_vectors <= call.group_vectors();
  for (int j = 0; j < tile.vector_count; ++j) {
    const VectorPlace at = PlaceOf(call, group, first + j);
    const int64_t column = int64_t{at.head} * s.head_dim + at.channel;
    tile.vectors[j] = {
        .u = call.u + row * call.ld + column,
        .out = call.out + row * call.ldout + column,
        .state = slice.state + at.state_offset,
        .next_state = nullptr,
        .state_offset = at.state_offset,
        .dt = call.dt + row * s.heads + at.head,
        .decay = call.decay + row * s.heads + at.head,
        .skip = call.d[at.head],
        .lanes = std::min(16, s.head_dim - at.channel),
    };
    if (fetch) {
      tile.vectors[j].next_state =
          slice.state + PlaceOf(call, group, first + j + call.level.tile_vectors).state_offset;
    }
  }
  call.level.run_tile(tile);
}

// Single rows stream their states through once: few, long ranges, so that two cores do not fetch
// each other's lines. Several rows: every tile is work enough.
int TaskCount(const ScanCall& call, int tiles, int threads) {
  for (const RecurrentSlice& slice : call.slices) {
    if (slice.row_count > 1) return tiles;
  }
  constexpr int kTilesPerTask = 12;
  return std::clamp(tiles / kTilesPerTask, std::min(threads, tiles), tiles);
}

}  // namespace

void SsdGates(const KernelContext& ctx, const float* raw, int64_t ld, const float* dt_bias,
              const float* a_neg, int rows, int heads, float* dt, float* decay,
              SsdStepLimits limits) {
  constexpr int kOperations = 8;  // as costly as so many element-wise ones
  ForRowRanges(ctx, rows, int64_t{heads} * kOperations, [&](int begin, int end) {
    Level(ctx).gates(raw + begin * ld, ld, dt_bias, a_neg, limits, end - begin, heads,
                     dt + int64_t{begin} * heads, decay + int64_t{begin} * heads);
  });
}

void SsdScan(const KernelContext& ctx, const SsdShape& shape,
             std::span<const RecurrentSlice> slices, const float* u, const float* b, const float* c,
             int64_t ld, const float* dt, const float* decay, const float* d, float* out,
             int64_t ldout) {
  CHECK(shape.heads >= 1 && shape.head_dim >= 1 && shape.state_dim >= 1);
  CHECK(shape.groups >= 1 && shape.heads % shape.groups == 0);
  CHECK(TapsAreValid(slices));
  if (ctx.faults != nullptr &&
      ctx.faults->SsdScan(ctx, shape, slices, u, b, c, ld, dt, decay, d, out, ldout))
    return;
  const ScanCall call = {Level(ctx), shape, slices, u, b, c, ld, dt, decay, d, out, ldout};
  const int tiles = static_cast<int>(slices.size()) * call.tiles();
  if (tiles == 0) return;
  const int tasks = TaskCount(call, tiles, ctx.pool->thread_count());
  ctx.pool->ParallelFor(tasks, [&](int task, int) {
    const int end = static_cast<int>(int64_t{tiles} * (task + 1) / tasks);
    for (int i = static_cast<int>(int64_t{tiles} * task / tasks); i < end; ++i)
      RunTile(call, i, i + 1 < end);
  });
}

}  // namespace cairn
