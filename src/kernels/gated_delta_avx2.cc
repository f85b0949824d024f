#include "kernels/gated_delta_impl.h"

namespace cairn {
const GatedDeltaLevel kGatedDeltaAvx2 = kGatedDelta;
}  // namespace cairn
