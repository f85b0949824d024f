#include "kernels/short_conv.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/short_conv_levels.h"

namespace cairn {
namespace {

// 3 rows of B and u and one of C, 512 channels each, are 14 KiB: they stay in L1.
constexpr int64_t kTileChannels = 512;
constexpr int64_t kSerialElements = 8192;  // about 5 us; waking the pool does not pay below

const ShortConvLevel& Level(const KernelContext& ctx) {
  switch (ctx.level) {
    case CpuLevel::kScalar:
      return kShortConvRef;
    case CpuLevel::kAvx2:
      return kShortConvAvx2;
    case CpuLevel::kAvx512:
      return kShortConvAvx512;
  }
  return kShortConvRef;
}

// Writes the tile's part of the state after row `row` to `dst` [kernel - 1] at channels. dst may be
// the state itself: row j comes from row j + 1 or later.
void WriteState(const ShortConvTile& p, int row, float* dst) {
  for (int j = 0; j < p.kernel - 1; ++j) {
    const int input = row - (p.kernel - 2) + j;
    float* to = dst + j * p.channels;
    if (input < 0) {
      const float* from = p.state + (p.kernel - 1 + input) * p.channels;
      std::memmove(to, from, static_cast<size_t>(p.count) * sizeof(float));
      continue;
    }
    const float *b = p.b + input * p.ld, *u = p.u + input * p.ld;
    for (int64_t c = 0; c < p.count; ++c) to[c] = b[c] * u[c];
  }
}

}  // namespace

void ShortConv(const KernelContext& ctx, const ShortConvShape& shape,
               std::span<const RecurrentSlice> slices, const float* bcu, int64_t ld,
               std::span<const float> w, std::span<const float> bias, float* y, int64_t ldy) {
  CHECK(shape.kernel >= 2 && shape.kernel <= kShortConvKernelMax);
  CHECK(w.size() == static_cast<size_t>(shape.kernel) * shape.channels);
  CHECK(bias.empty() || bias.size() == static_cast<size_t>(shape.channels));
  CHECK(TapsAreValid(slices));
  const ShortConvLevel& level = Level(ctx);
  const int64_t channels = shape.channels;
  const int tiles = static_cast<int>((channels + kTileChannels - 1) / kTileChannels);
  int64_t rows = 0;
  for (const RecurrentSlice& slice : slices) rows += slice.row_count;

  const auto run = [&](int task, int) {
    const RecurrentSlice& slice = slices[task / tiles];
    if (slice.row_count == 0) return;
    const int64_t channel = task % tiles * kTileChannels;
    const float* b = bcu + slice.row_begin * ld + channel;
    const ShortConvTile tile = {
        .b = b,
        .c = b + channels,
        .u = b + 2 * channels,
        .ld = ld,
        .state = slice.state + channel,
        .weights = w.data() + channel,
        .bias = bias.empty() ? nullptr : bias.data() + channel,
        .y = y + slice.row_begin * ldy + channel,
        .ldy = ldy,
        .channels = channels,
        .rows = slice.row_count,
        .kernel = shape.kernel,
        .count = std::min(kTileChannels, channels - channel),
    };
    level.run_tile(tile);
    for (const StateTap& tap : slice.taps) WriteState(tile, tap.row, tap.dst + channel);
    WriteState(tile, slice.row_count - 1, slice.state + channel);
  };
  const int tasks = static_cast<int>(slices.size()) * tiles;
  if (rows * channels < kSerialElements) {
    for (int task = 0; task < tasks; ++task) run(task, 0);
  } else {
    ctx.pool->ParallelFor(tasks, run);
  }
}

}  // namespace cairn
