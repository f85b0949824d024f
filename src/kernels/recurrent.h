// Shared by kernels that carry a recurrent state through a step: slices of sequences, and taps that
// copy the state after a row.
//
// Ownership: states and taps' copies are the caller's, state_floats() of the kernel's shape each;
// no two slices of a call share a state. Threads: plain data.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/state_tap.h"

namespace cairn {

// Rows of one sequence in this step. Taps ascend by row; several taps may name one row.
struct RecurrentSlice {
  int row_begin;
  int row_count;  // 0: the state stays as it is
  float* state;   // in: state before row_begin; out: after the last row
  std::span<const StateTap> taps;
};

// Ascending rows, all inside their slice.
inline bool TapsAreValid(std::span<const RecurrentSlice> slices) {
  for (const RecurrentSlice& slice : slices) {
    int last = 0;
    for (const StateTap& tap : slice.taps) {
      if (tap.row < last || tap.row >= slice.row_count) return false;
      last = tap.row;
    }
  }
  return true;
}

}  // namespace cairn
