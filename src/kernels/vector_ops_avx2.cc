#include "kernels/vector_ops_impl.h"

namespace cairn {
const VectorOpsLevel kVectorOpsAvx2 = kVectorOps;
}  // namespace cairn
