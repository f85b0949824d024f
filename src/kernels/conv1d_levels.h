// The levels of conv1d.h: a tile of channels over the rows of a slice.
#pragma once

#include <cstdint>

namespace cairn {

inline constexpr int kConvKernelMax = 8;

// Pointers stand at the tile's first channel.
struct Conv1dTile {
  const float* u;  // [rows] at ldu
  int64_t ldu;
  const float* state;    // [kernel - 1] at channels
  const float* weights;  // [kernel] at channels
  const float* bias;     // or null
  float* y;              // [rows] at ldy
  int64_t ldy;
  int64_t channels;  // of the whole layer: the stride of state and weights
  int rows;
  int kernel;  // 2..8
  bool silu;
  int64_t count;  // channels in the tile
};

struct Conv1dLevel {
  void (*run_tile)(const Conv1dTile& tile);
};

extern const Conv1dLevel kConv1dRef;
extern const Conv1dLevel kConv1dAvx2;
extern const Conv1dLevel kConv1dAvx512;

}  // namespace cairn
