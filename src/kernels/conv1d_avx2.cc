#include "kernels/conv1d_impl.h"

namespace cairn {
const Conv1dLevel kConv1dAvx2 = kConv1d;
}  // namespace cairn
