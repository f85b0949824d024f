#include "kernels/rope_impl.h"

namespace cairn {
const RopeLevel kRopeAvx2 = kRope;
}  // namespace cairn
