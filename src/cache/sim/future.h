// An eviction policy that knows all requests to come: the bound that the simulator shows beside the
// others. It is greedy, so it is no proof of what is possible, but a good deal better than anything
// that cannot look ahead.
//
// A checkpoint's next use is the next request that an infinite cache would restore there. What has
// none goes first; of the rest what is used farthest ahead, or what saves least per byte and
// request until then.
//
// Threads: one.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "cache/eviction.h"
#include "cache/sim/trace.h"

namespace cairn {

class Future : public VictimChooser {
 public:
  enum class Order { kFarthest, kLeastSaved };
  // restore_points: of an infinite cache, one a request.
  Future(const Trace& trace, const std::vector<int64_t>& restore_points, Order order);
  void NextRequest() { ++now_; }  // call before each request
  TreeNode* Choose(std::span<const ValueItem* const> items) override;

 private:
  int64_t NextUse(const ValueItem& item);

  const Order order_;
  int64_t now_ = -1;
  // By hash of the tokens: the requests that restore there, the next one last.
  std::unordered_map<uint64_t, std::vector<int64_t>> uses_;
  std::unordered_map<uint64_t, uint64_t> hashes_;  // by node id; a node's end never changes
};

}  // namespace cairn
