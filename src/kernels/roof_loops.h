// Per-level inner loops of roof.h. Plain declarations only: included by files built with
// instruction-set flags.
#pragma once

namespace cairn {

// One thread's inner loops; each returns something that depends on all of its work, so that it
// cannot be left out.
using RoofLoop = float (*)(int rounds);
struct RoofLoops {
  RoofLoop fma;
  RoofLoop int8;
  double fma_ops_per_round;
  double int8_ops_per_round;
};
RoofLoops RoofLoopsScalar();
RoofLoops RoofLoopsAvx2();
RoofLoops RoofLoopsAvx512();

}  // namespace cairn
