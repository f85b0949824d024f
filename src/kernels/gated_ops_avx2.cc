#include "kernels/gated_ops_impl.h"

namespace cairn {
const GatedOpsLevel kGatedOpsAvx2 = kGatedOps;
}  // namespace cairn
