#include "kernels/ssd_scan_impl.h"

namespace cairn {
const SsdScanLevel kSsdScanAvx2 = kSsdScan;
}  // namespace cairn
