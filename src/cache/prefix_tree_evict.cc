// Eviction: collects plain data for the policy of eviction.h and does what it says.
#include <algorithm>
#include <unordered_set>

#include "base/check.h"
#include "cache/prefix_tree.h"
#include "cache/prefix_tree_node.h"

namespace cairn {
namespace {

// Nodes with a state on the way from the root to `node`, in order of position.
std::vector<TreeNode*> StatesOnPath(TreeNode* node) {
  std::vector<TreeNode*> states;
  for (; !node->is_root(); node = node->parent) {
    if (node->has_state()) states.push_back(node);
  }
  std::reverse(states.begin(), states.end());
  return states;
}

// Whether `node` belongs to the idle path of `leaf` alone: no live sequence, no second child, no
// more recent use.
bool IsExclusive(const TreeNode* node, const TreeNode* leaf) {
  return !node->is_root() && node->leases == 0 && node->children.size() <= 1 &&
         node->last_use == leaf->last_use;
}

}  // namespace

TreeNode* PrefixTree::OldestIdleLeaf() const {
  std::array<LeafQueue, kPathTypes> queues;
  for (int i = 0; i < kPathTypes; ++i) {
    if (idle_leaves_[i].empty()) continue;
    queues[i] = {idle_leaves_[i].size(), idle_leaves_[i].begin()->first};
  }
  const std::optional<PathType> type = ChooseQueue(queues, options_.policy);
  return type ? idle_leaves_[static_cast<int>(*type)].begin()->second : nullptr;
}

void PrefixTree::TakeState(TreeNode* node) {
  RecordEviction(node);
  FreeState(node);
  node->taken.push_back(node->end());
  ++evictions_.bytes;
  Tidy(node);
}

bool PrefixTree::EvictIdle() {
  TreeNode* leaf = OldestIdleLeaf();
  if (leaf == nullptr) return false;
  const std::vector<TreeNode*> nodes = StatesOnPath(leaf);
  // From the leaf upwards, the path is the leaf's own up to some node, and shared above it.
  const TreeNode* shared = leaf;
  while (IsExclusive(shared, leaf)) shared = shared->parent;
  std::vector<PathState> states;
  for (const TreeNode* node : nodes) {
    states.push_back({node->end(), node->begin >= shared->end() && !node->pinned});
  }
  if (const auto inner = ChooseInnerState(states)) {
    TakeState(nodes[inner->deeper]);
    return true;
  }
  EvictLeaf(leaf);
  return true;
}

void PrefixTree::EvictLeaf(TreeNode* leaf) {
  TreeNode* parent = leaf->parent;
  RecordEviction(leaf);
  Remove(leaf);
  Tidy(parent);
  ++evictions_.bytes;
}

bool PrefixTree::EvictPath() {
  TreeNode* leaf = options_.policy == CachePolicy::kValue ? ChooseValue(true) : OldestIdleLeaf();
  if (leaf == nullptr) return false;
  const uint64_t use = leaf->last_use;
  while (true) {
    TreeNode* parent = leaf->parent;
    Remove(leaf);
    if (!parent->is_leaf() || parent->leases > 0 || parent->pinned || parent->last_use != use) {
      Tidy(parent);
      break;
    }
    leaf = parent;
  }
  ++evictions_.paths;
  return true;
}

std::vector<PrefixTree::HeldPath> PrefixTree::HeldPaths() const {
  std::vector<HeldPath> held;
  for (const LeaseRecord* record : leases_) held.push_back({record->node, record});
  for (TreeNode* node : pins_) held.push_back({node, nullptr});
  return held;
}

// A state of a live or pinned path may go only if it is an inner one on each such path that it is
// on. Marks that are reserved count as states of their path, which may not go; the candidate as one
// that may.
std::vector<PrefixTree::LivePath> PrefixTree::LivePaths(
    const std::optional<Candidate>& candidate) const {
  const std::vector<HeldPath> held = HeldPaths();
  std::vector<LivePath> paths(held.size());
  std::vector<std::vector<int64_t>> planned(held.size());
  std::unordered_set<const TreeNode*> kept(pins_.begin(), pins_.end());
  for (size_t i = 0; i < held.size(); ++i) {
    const LeaseRecord* record = held[i].record;
    std::vector<TreeNode*>& nodes = paths[i].nodes = StatesOnPath(held[i].node);
    if (record == nullptr) {  // of a pinned path even the first state may go: in front is the root
      TreeNode* root = held[i].node;
      while (!root->is_root()) root = root->parent;
      nodes.insert(nodes.begin(), root);
      kept.insert(root);
      continue;
    }
    planned[i] = record->reserved_marks;
    if (candidate && candidate->record == record) {
      planned[i].insert(std::upper_bound(planned[i].begin(), planned[i].end(), candidate->position),
                        candidate->position);
    }
    if (nodes.empty()) continue;
    kept.insert(nodes.front());
    if (planned[i].empty()) kept.insert(nodes.back());
  }
  for (size_t i = 0; i < held.size(); ++i) {
    for (const TreeNode* node : paths[i].nodes) {
      paths[i].states.push_back({node->end(), node->children.size() <= 1 && !kept.contains(node)});
    }
    for (int64_t p : planned[i]) {
      const bool is_candidate =
          candidate && candidate->record == held[i].record && candidate->position == p;
      paths[i].states.push_back({p, is_candidate});
    }
  }
  return paths;
}

// The closest pair of all live and pinned paths.
std::optional<PrefixTree::LiveVictim> PrefixTree::ChooseLive(
    const std::optional<Candidate>& candidate) const {
  std::optional<LiveVictim> victim;
  for (const LivePath& path : LivePaths(candidate)) {
    const auto pair = ChooseInnerState(path.states);
    if (!pair) continue;
    const int64_t position = path.states[pair->deeper].position;
    if (victim && std::pair(victim->gap, victim->position) <= std::pair(pair->gap, position)) {
      continue;
    }
    const bool is_node = pair->deeper < path.nodes.size();
    victim = LiveVictim{is_node ? path.nodes[pair->deeper] : nullptr, pair->gap, position};
  }
  return victim;
}

// Whether there would be room if all went that may go: nothing is thrown out in vain.
bool PrefixTree::CouldFit(uint64_t bytes_more, const std::optional<Candidate>& candidate) const {
  std::unordered_set<const TreeNode*> states, nodes;
  std::unordered_set<uint32_t> blocks;
  for (const LivePath& path : LivePaths(candidate)) {
    for (size_t i = 0; i < path.nodes.size(); ++i) {
      if (!path.states[i].may_go && path.nodes[i]->has_state()) states.insert(path.nodes[i]);
    }
  }
  for (const HeldPath& held : HeldPaths()) {
    for (const TreeNode* node = held.node; node != nullptr; node = node->parent) {
      if (!nodes.insert(node).second) break;
      for (const BlockRef& block : node->blocks) blocks.insert(block.index());
    }
  }
  const uint64_t kept =
      reserved_bytes() + blocks.size() * block_bytes_ + states.size() * buffer_bytes_;
  return kept <= options_.bytes_max && bytes_more <= options_.bytes_max - kept;
}

// The least valuable of all, a live path's closest pair included.
bool PrefixTree::EvictValue(const std::optional<Candidate>& candidate) {
  TreeNode* idle = ChooseValue(false);
  const std::optional<LiveVictim> live = ChooseLive(candidate);
  if (live && live->node != nullptr && (idle == nullptr || LiveValue(*live) < IdleValue(idle))) {
    TakeState(live->node);
    return true;
  }
  if (idle == nullptr) return false;
  if (idle->is_leaf()) {
    EvictLeaf(idle);
  } else {
    TakeState(idle);
  }
  return true;
}

bool PrefixTree::EvictNext(const std::optional<Candidate>& candidate) {
  if (options_.policy == CachePolicy::kValue) return EvictValue(candidate);
  if (EvictIdle()) return true;
  const std::optional<LiveVictim> victim = ChooseLive(candidate);
  if (!victim || victim->node == nullptr) return false;
  TakeState(victim->node);
  return true;
}

bool PrefixTree::EvictOne() { return EvictNext(std::nullopt); }

bool PrefixTree::MakeRoom(uint64_t bytes_more, const Candidate& candidate) {
  if (Fits(bytes_more)) return true;
  if (!CouldFit(bytes_more, candidate)) return false;
  while (!Fits(bytes_more)) {
    if (!EvictNext(candidate)) return false;
  }
  return true;
}

}  // namespace cairn
