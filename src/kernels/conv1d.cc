#include "kernels/conv1d.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/conv1d_levels.h"
#include "kernels/kernel_faults.h"

namespace cairn {
namespace {

// 4 rows of 512 channels are 8 KiB of inputs and 8 KiB of weights: both stay in L1.
constexpr int64_t kTileChannels = 512;
constexpr int64_t kSerialElements = 8192;  // about 5 us; waking the pool does not pay below

const Conv1dLevel& Level(const KernelContext& ctx) {
  switch (ctx.level) {
    case CpuLevel::kScalar:
      return kConv1dRef;
    case CpuLevel::kAvx2:
      return kConv1dAvx2;
    case CpuLevel::kAvx512:
      return kConv1dAvx512;
  }
  return kConv1dRef;
}

// Writes the tile's part of the state after row `row` to `dst` [kernel - 1] at channels. dst may be
// the state itself: row j comes from row j + 1 or later.
void WriteState(const Conv1dTile& p, int row, float* dst) {
  for (int j = 0; j < p.kernel - 1; ++j) {
    const int input = row - (p.kernel - 2) + j;
    const float* src =
        input >= 0 ? p.u + input * p.ldu : p.state + (p.kernel - 1 + input) * p.channels;
    std::memcpy(dst + j * p.channels, src, static_cast<size_t>(p.count) * sizeof(float));
  }
}

}  // namespace

void Conv1d(const KernelContext& ctx, const Conv1dShape& shape,
            std::span<const RecurrentSlice> slices, const float* u, int64_t ldu,
            std::span<const float> w, std::span<const float> bias, float* y, int64_t ldy) {
  CHECK(shape.kernel >= 2 && shape.kernel <= kConvKernelMax);
  CHECK(w.size() == static_cast<size_t>(shape.kernel) * shape.channels);
  CHECK(bias.empty() || bias.size() == static_cast<size_t>(shape.channels));
  CHECK(TapsAreValid(slices));
  if (ctx.faults != nullptr && ctx.faults->Conv1d(ctx, shape, slices, u, ldu, w, bias, y, ldy))
    return;
  const Conv1dLevel& level = Level(ctx);
  const int64_t channels = shape.channels;
  const int tiles = static_cast<int>((channels + kTileChannels - 1) / kTileChannels);
  int64_t rows = 0;
  for (const RecurrentSlice& slice : slices) rows += slice.row_count;

  const auto run = [&](int task, int) {
    const RecurrentSlice& slice = slices[task / tiles];
    if (slice.row_count == 0) return;
    const int64_t channel = task % tiles * kTileChannels;
    const int64_t row = slice.row_begin;
    const Conv1dTile tile = {
        .u = u + row * ldu + channel,
        .ldu = ldu,
        .state = slice.state + channel,
        .weights = w.data() + channel,
        .bias = bias.empty() ? nullptr : bias.data() + channel,
        .y = y + row * ldy + channel,
        .ldy = ldy,
        .channels = channels,
        .rows = slice.row_count,
        .kernel = shape.kernel,
        .silu = shape.activation == ConvActivation::kSilu,
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
