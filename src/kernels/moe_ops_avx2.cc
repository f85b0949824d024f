#include "kernels/moe_ops_impl.h"

namespace cairn {
const MoeOpsLevel kMoeOpsAvx2 = kMoeOps;
}  // namespace cairn
