// Shared by kernels that carry a recurrent state through a step: slices of sequences, and taps that
// copy the state after a row.
#pragma once

#include <cstdint>
#include <span>

namespace cairn {

// After row `row` (relative to the slice) the state is also written to `dst` (same size and layout
// as `state`). Taps never cut a chunk and never change a bit of any row.
struct StateTap {
  int row;
  float* dst;
};

// Rows of one sequence in this step. Taps ascend by row; several taps may name one row.
struct RecurrentSlice {
  int row_begin;
  int row_count;
  float* state;  // in: state before row_begin; out: after the last row
  std::span<const StateTap> taps;
};

}  // namespace cairn
