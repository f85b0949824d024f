// A node of the prefix tree and a lease on one; the inside of prefix_tree.h.
// Threads: the engine thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/token.h"
#include "cache/eviction.h"
#include "cache/marks.h"
#include "cache/reuse_model.h"
#include "cache/value_queue.h"
#include "state/block_pool.h"
#include "state/state_pool.h"

namespace cairn {

inline size_t BlocksCovering(int64_t tokens) {
  return static_cast<size_t>((tokens + kBlockTokens - 1) / kBlockTokens);
}

// A root has no parent and an empty run at 0.
struct TreeNode {
  TreeNode* parent = nullptr;
  uint64_t id = 0;  // 0: a root
  int64_t begin = 0;
  std::vector<Token> tokens;     // of [begin, end())
  std::vector<BlockRef> blocks;  // begin / 64 .. BlocksCovering(end()) - 1; empty without KV
  StateBuffer state;             // after the token before end(); empty: no checkpoint here
  MarkKinds kinds = 0;           // of the state
  PathType type = PathType::kUser;
  uint64_t last_use = 0;       // never smaller than a child's
  int leases = 0;              // leases on this very node
  bool pinned = false;         // listed in PrefixTree::pins_
  std::vector<int64_t> taken;  // positions in (begin, end()] whose state eviction took
  int live = 0;                // leases on this node or below
  int uses = 0;                // restores of this very state
  int lineage = 0;             // how often its conversation was continued before
  uint64_t last_request = 0;   // last use, by the clock of requests
  ReuseClass reuse_class;      // as of its last use
  uint64_t recorded_age = 0;   // how much of its waiting reuse_ knows already
  bool queued = false;         // in the queue of idle leaves or of values, ...
  uint64_t queued_use = 0;     // ... with this stamp
  PathType queued_type = PathType::kUser;
  ValueQueue::Key value_key;
  std::vector<std::unique_ptr<TreeNode>> children;  // by first token, all different

  int64_t end() const { return begin + static_cast<int64_t>(tokens.size()); }
  bool is_root() const { return parent == nullptr; }
  bool has_state() const { return static_cast<bool>(state); }
  bool is_leaf() const { return !is_root() && children.empty(); }
  // Index of the child whose run begins with `token`, or where it would be inserted.
  size_t ChildIndex(Token token) const;
  TreeNode* Child(Token token) const;  // nullptr: none
};

struct LeaseRecord {
  TreeNode* node;
  std::vector<int64_t> reserved_marks;  // positions for which a state buffer is set aside
  uint64_t reserved_blocks = 0;         // blocks set aside for all of them
  int lineage = 0;                      // of what it publishes
};

}  // namespace cairn
