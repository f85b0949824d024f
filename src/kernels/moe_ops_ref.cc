#include "kernels/moe_ops_impl.h"

namespace cairn {
const MoeOpsLevel kMoeOpsRef = kMoeOps;
}  // namespace cairn
