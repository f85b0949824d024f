#include "kernels/rope_impl.h"

namespace cairn {
const RopeLevel kRopeRef = kRope;
}  // namespace cairn
