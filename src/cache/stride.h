// How close grid checkpoints may sensibly lie: --prefill-step-size auto. Pure functions.
// Threads: free functions.
#pragma once

#include <cstdint>

#include "state/state_layout.h"

namespace cairn {

inline constexpr int64_t kStrideMax = 2048;
// A block of KV; also what a branch mark needs (cache/marks.h): nearer, replay is the cheaper way.
inline constexpr int64_t kStrideMin = 64;
// A grid may take this share of the bytes of the KV that lies between its checkpoints.
inline constexpr double kGridShareMax = 0.05;

// kStrideMax, or where states are small beside KV (short convolutions) the least power of two from
// kStrideMin up whose grid stays within kGridShareMax. It divides kStrideMax, so each multiple of
// kStrideMax is a checkpoint with any layout. docs/state_sizes.md has the measurements.
int64_t AutoStride(const StateLayout& layout);

// State bytes of the grid for each byte of KV; infinite without KV.
double GridShare(const StateLayout& layout, int64_t stride);

}  // namespace cairn
