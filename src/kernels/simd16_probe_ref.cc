#include "kernels/simd16_probe_impl.h"

namespace cairn {
const SimdProbe kSimdProbeRef = kProbe;
}  // namespace cairn
