#include "kernels/vector_ops_impl.h"

namespace cairn {
const VectorOpsLevel kVectorOpsAvx512 = kVectorOps;
}  // namespace cairn
