#include "cache/eviction.h"

namespace cairn {

PathType PathTypeAt(int64_t position, int64_t system_end, int64_t tail_begin, bool raw) {
  if (!raw && position <= system_end) return PathType::kSystem;
  return raw || position > tail_begin ? PathType::kAssistant : PathType::kUser;
}

std::optional<PathType> ChooseQueue(const std::array<LeafQueue, kPathTypes>& queues,
                                    CachePolicy policy) {
  std::optional<PathType> chosen;
  for (int i = 0; i < kPathTypes; ++i) {
    const LeafQueue& queue = queues[i];
    if (queue.length == 0) continue;
    if (policy == CachePolicy::kLruType) {
      chosen = static_cast<PathType>(i);
      if (i + 1 == kPathTypes || queue.length >= queues[i + 1].length) break;
    } else if (!chosen || queue.oldest_use < queues[static_cast<int>(*chosen)].oldest_use) {
      chosen = static_cast<PathType>(i);
    }
  }
  return chosen;
}

std::optional<ClosestPair> ChooseInnerState(std::span<const PathState> path) {
  std::optional<ClosestPair> closest;
  for (size_t i = 1; i + 1 < path.size(); ++i) {
    if (!path[i].may_go) continue;
    const int64_t gap = path[i].position - path[i - 1].position;
    if (!closest || gap < closest->gap) closest = ClosestPair{i, gap};
  }
  return closest;
}

}  // namespace cairn
