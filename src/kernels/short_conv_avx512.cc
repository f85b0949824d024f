#include "kernels/short_conv_impl.h"

namespace cairn {
const ShortConvLevel kShortConvAvx512 = kShortConv;
}  // namespace cairn
