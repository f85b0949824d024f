#include "kernels/gated_ops_impl.h"

namespace cairn {
const GatedOpsLevel kGatedOpsRef = kGatedOps;
}  // namespace cairn
