// A tap of a recurrent kernel; a plain struct, because files compiled for one CPU level use it too.
#pragma once

namespace cairn {

// After row `row` (relative to the slice) the state is also written to `dst` (same size and layout
// as `state`). Taps never cut a chunk and never change a bit of any row.
struct StateTap {
  int row;
  float* dst;
};

}  // namespace cairn
