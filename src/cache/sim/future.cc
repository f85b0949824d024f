#include "cache/sim/future.h"

#include <algorithm>
#include <limits>

#include "cache/prefix_tree_node.h"
#include "cache/value_queue.h"

namespace cairn {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

uint64_t HashPath(const TreeNode* node) {
  std::vector<const TreeNode*> path;
  for (; !node->is_root(); node = node->parent) path.push_back(node);
  uint64_t hash = 0;
  for (size_t i = path.size(); i-- > 0;) {
    for (const Token token : path[i]->tokens) hash = ExtendHash(hash, token);
  }
  return hash;
}

}  // namespace

// Equal prompts under different salts count as one: that only makes the bound more generous to what
// it keeps.
Future::Future(const Trace& trace, const std::vector<int64_t>& restore_points, Order order)
    : order_(order) {
  for (size_t i = trace.requests.size(); i-- > 0;) {
    if (restore_points[i] == 0) continue;
    const TokenRequest r = Tokenize(trace.requests[i]);
    uint64_t hash = 0;
    for (int64_t p = 0; p < restore_points[i]; ++p) hash = ExtendHash(hash, r.tokens[p]);
    uses_[hash].push_back(static_cast<int64_t>(i));
  }
}

int64_t Future::NextUse(const ValueItem& item) {
  auto [hash, added] = hashes_.try_emplace(item.id, 0);
  if (added) hash->second = HashPath(item.node);
  const auto uses = uses_.find(hash->second);
  if (uses == uses_.end()) return kNever;
  while (!uses->second.empty() && uses->second.back() <= now_) uses->second.pop_back();
  return uses->second.empty() ? kNever : uses->second.back();
}

TreeNode* Future::Choose(std::span<const ValueItem* const> items) {
  const ValueItem* worst = nullptr;
  std::pair<double, double> worst_rank;
  for (const ValueItem* item : items) {
    const int64_t next = NextUse(*item);
    const double density = item->saved / static_cast<double>(std::max<uint64_t>(1, item->bytes));
    const double distance = static_cast<double>(next - now_);
    std::pair<double, double> rank;  // the smallest goes
    if (next == kNever) {
      rank = {-1, density};
    } else if (order_ == Order::kFarthest) {
      rank = {1 / distance, density};
    } else {
      rank = {density / distance, 0};
    }
    if (worst == nullptr || std::pair(rank, item->id) < std::pair(worst_rank, worst->id)) {
      worst = item;
      worst_rank = rank;
    }
  }
  return worst->node;
}

}  // namespace cairn
