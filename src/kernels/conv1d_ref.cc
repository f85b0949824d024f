#include "kernels/conv1d_impl.h"

namespace cairn {
const Conv1dLevel kConv1dRef = kConv1d;
}  // namespace cairn
