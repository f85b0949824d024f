#include "kernels/gated_delta_impl.h"

namespace cairn {
const GatedDeltaLevel kGatedDeltaAvx512 = kGatedDelta;
}  // namespace cairn
