#include "kernels/short_conv_impl.h"

namespace cairn {
const ShortConvLevel kShortConvRef = kShortConv;
}  // namespace cairn
