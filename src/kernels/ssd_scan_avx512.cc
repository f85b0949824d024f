#include "kernels/ssd_scan_impl.h"

namespace cairn {
const SsdScanLevel kSsdScanAvx512 = kSsdScan;
}  // namespace cairn
