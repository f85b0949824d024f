#include "kernels/simd16_probe_impl.h"

namespace cairn {
const SimdProbe kSimdProbeAvx2 = kProbe;
}  // namespace cairn
