#include "kernels/gated_ops_impl.h"

namespace cairn {
const GatedOpsLevel kGatedOpsAvx512 = kGatedOps;
}  // namespace cairn
