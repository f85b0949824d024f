// The levels of rope.h.
#pragma once

#include <cstdint>

namespace cairn {

struct RopeHeads {
  float* x;
  int64_t ldx, head_stride;
  int rows, heads;
  const float* cos;  // [rows][half]
  const float* sin;
  int half;
};

struct RopeLevel {
  void (*half_split)(const RopeHeads& heads);
  void (*interleaved)(const RopeHeads& heads);
};

extern const RopeLevel kRopeRef;
extern const RopeLevel kRopeAvx2;
extern const RopeLevel kRopeAvx512;

}  // namespace cairn
