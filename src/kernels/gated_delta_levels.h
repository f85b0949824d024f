// The levels of gated_delta.h: one value head's column tile over the rows of a slice.
#pragma once

#include <cstdint>

#include "kernels/state_tap.h"

namespace cairn {

inline constexpr int kDeltaKeyDimMax = 256;

// Pointers stand at the tile's head, row and first column.
struct GatedDeltaTile {
  const float* q;  // [rows] at ldqk, dk values
  const float* k;
  int64_t ldqk;
  const float* v;  // [rows] at ldv, `columns` values
  int64_t ldv;
  const float* g;  // [rows] at ldg, one value
  const float* beta;
  int64_t ldg;
  float* out;  // [rows] at ldout, `columns` values
  int64_t ldout;
  float* state;  // [dk] at ldstate, `columns` values
  int64_t ldstate;
  int64_t state_offset;  // of the tile in a whole state, for taps
  const StateTap* taps;  // ascending by row
  int tap_count;
  int dk;
  int rows;     // >= 1
  int columns;  // multiple of 16, <= the level's tile_columns
};

struct GatedDeltaLevel {
  int tile_columns;
  void (*run_tile)(const GatedDeltaTile& tile);
};

extern const GatedDeltaLevel kGatedDeltaRef;
extern const GatedDeltaLevel kGatedDeltaAvx2;
extern const GatedDeltaLevel kGatedDeltaAvx512;

}  // namespace cairn
