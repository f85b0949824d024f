#include "kernels/ssd_scan_impl.h"

namespace cairn {
const SsdScanLevel kSsdScanRef = kSsdScan;
}  // namespace cairn
