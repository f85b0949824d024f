#include "kernels/simd16_probe_impl.h"

namespace cairn {
const SimdProbe kSimdProbeAvx512 = kProbe;
}  // namespace cairn
