// The levels of ssd_scan.h: row-wise gates, and up to tile_vectors vectors of channels over the
// rows of a slice.
#pragma once

#include <cstdint>

#include "kernels/state_tap.h"

namespace cairn {

inline constexpr int kSsdTileVectorsMax = 4;

// Up to 16 neighbouring channels of one head. Pointers stand at its first channel.
struct SsdVector {
  const float* u;           // [rows] at ld
  float* out;               // [rows] at ldout
  float* state;             // [states] at ldstate
  const float* next_state;  // what this thread reads next, laid out as `state`; or null
  int64_t state_offset;     // of `state` in a whole state, for taps
  const float* dt;          // [rows] at ldg, one value
  const float* decay;
  float skip;  // D of the head
  int lanes;   // channels, 1..16
};

// Vectors of one group: they share B and C.
struct SsdTile {
  SsdVector vectors[kSsdTileVectorsMax];
  int vector_count;
  bool whole;      // every vector has 16 lanes
  const float* b;  // [rows] at ld, `states` values
  const float* c;
  int64_t ld;
  int64_t ldg;
  int64_t ldout;
  int64_t ldstate;
  const StateTap* taps;  // ascending by row
  int tap_count;
  int states;
  int rows;  // >= 1
};

// What dt is kept within; by default all that softplus gives.
struct SsdStepLimits {
  float min = 0;
  float max = __builtin_inff();
};

struct SsdScanLevel {
  int tile_vectors;
  void (*run_tile)(const SsdTile& tile);
  void (*gates)(const float* raw, int64_t ld, const float* dt_bias, const float* a_neg,
                SsdStepLimits limits, int rows, int heads, float* dt, float* decay);
};

extern const SsdScanLevel kSsdScanRef;
extern const SsdScanLevel kSsdScanAvx2;
extern const SsdScanLevel kSsdScanAvx512;

}  // namespace cairn
