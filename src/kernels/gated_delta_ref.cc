#include "kernels/gated_delta_impl.h"

namespace cairn {
const GatedDeltaLevel kGatedDeltaRef = kGatedDelta;
}  // namespace cairn
