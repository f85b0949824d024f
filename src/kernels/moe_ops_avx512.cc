#include "kernels/moe_ops_impl.h"

namespace cairn {
const MoeOpsLevel kMoeOpsAvx512 = kMoeOps;
}  // namespace cairn
