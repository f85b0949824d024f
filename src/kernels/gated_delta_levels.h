// The levels of gated_delta.h: one value head's column tile over the rows of a slice.
#pragma once

#include <cstdint>

#include "kernels/state_tap.h"

namespace cairn {

inline constexpr int kDeltaKeyDimMax = 256;
inline constexpr int kDeltaSingleRowColumns = 512;  // columns of a tile with one row, at most

// Pointers stand at the tile's head, row and first column.
struct GatedDeltaTile {
  const float* q;  // [rows] at ldqk, dk values
  const float* k;
  int64_t ldqk;
  const float* v;  // [rows] at ldv, `columns` values
  int64_t ldv;
  const float* g;  // [rows] at ldg, one value, or dk with channel_decay
  int64_t ldg;
  const float* beta;  // [rows] at ldbeta, one value
  int64_t ldbeta;
  float* out;  // [rows] at ldout, `columns` values
  int64_t ldout;
  float* state;  // [dk] at ldstate, `columns` values
  int64_t ldstate;
  const float* next_state;  // what this thread reads next, laid out as `state`; or null
  int64_t state_offset;     // of the tile in a whole state, for taps
  const StateTap* taps;     // ascending by row
  int tap_count;
  bool channel_decay;
  int dk;
  int rows;     // >= 1
  int columns;  // multiple of 16; at most tile_columns, or kDeltaSingleRowColumns for one row
};

struct GatedDeltaLevel {
  int tile_columns;  // of slices with several rows
  void (*run_tile)(const GatedDeltaTile& tile);
};

extern const GatedDeltaLevel kGatedDeltaRef;
extern const GatedDeltaLevel kGatedDeltaAvx2;
extern const GatedDeltaLevel kGatedDeltaAvx512;

}  // namespace cairn
