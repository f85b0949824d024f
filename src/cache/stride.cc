#include "cache/stride.h"

#include <limits>

namespace cairn {

double GridShare(const StateLayout& layout, int64_t stride) {
  const double kv = static_cast<double>(layout.kv_bytes_per_token()) * static_cast<double>(stride);
  if (!(kv > 0)) return std::numeric_limits<double>::infinity();
  return static_cast<double>(layout.buffer_bytes()) / kv;
}

int64_t AutoStride(const StateLayout& layout) {
  // A layout of KV only has no grid.
  if (layout.trimmable()) return kStrideMax;
  int64_t stride = kStrideMin;
  while (stride < kStrideMax && GridShare(layout, stride) > kGridShareMax) stride *= 2;
  return stride;
}

}  // namespace cairn
