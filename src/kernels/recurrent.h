// Shared by kernels that carry a recurrent state through a step: slices of sequences, and taps that
// copy the state after a row.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/state_tap.h"

namespace cairn {

// Rows of one sequence in this step. Taps ascend by row; several taps may name one row.
struct RecurrentSlice {
  int row_begin;
  int row_count;
  float* state;  // in: state before row_begin; out: after the last row
  std::span<const StateTap> taps;
};

}  // namespace cairn
