#include "kernels/short_conv_impl.h"

namespace cairn {
const ShortConvLevel kShortConvAvx2 = kShortConv;
}  // namespace cairn
