#include "kernels/rope_impl.h"

namespace cairn {
const RopeLevel kRopeAvx512 = kRope;
}  // namespace cairn
