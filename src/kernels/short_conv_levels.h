// The levels of short_conv.h: a tile of channels over the rows of a slice.
#pragma once

#include <cstdint>

namespace cairn {

inline constexpr int kShortConvKernelMax = 8;

// Pointers stand at the tile's first channel.
struct ShortConvTile {
  const float *b, *c, *u;  // [rows] at ld
  int64_t ld;
  const float* state;    // [kernel - 1] at channels
  const float* weights;  // [kernel] at channels
  const float* bias;     // or null
  float* y;              // [rows] at ldy
  int64_t ldy;
  int64_t channels;  // of the whole layer: the stride of state and weights
  int rows;
  int kernel;     // 2..8
  int64_t count;  // channels in the tile
};

struct ShortConvLevel {
  void (*run_tile)(const ShortConvTile& tile);
};

extern const ShortConvLevel kShortConvRef;
extern const ShortConvLevel kShortConvAvx2;
extern const ShortConvLevel kShortConvAvx512;

}  // namespace cairn
