// What people ask of the tree (list, drop, clear), and the check of all its invariants.
#include <algorithm>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "base/check.h"
#include "cache/prefix_tree.h"
#include "cache/prefix_tree_node.h"

namespace cairn {

std::vector<TreeNode*> PrefixTree::AllNodes() const {
  std::vector<TreeNode*> nodes;
  for (const auto& [salt, root] : roots_) {
    nodes.push_back(root.get());
    for (size_t i = nodes.size() - 1; i < nodes.size(); ++i) {
      for (const auto& child : nodes[i]->children) nodes.push_back(child.get());
    }
  }
  return nodes;
}

std::vector<NodeInfo> PrefixTree::List() const {
  std::vector<NodeInfo> list;
  const TreeNode* unsalted = FindRoot("");
  const TreeNode* root = nullptr;  // of the nodes that follow
  for (const TreeNode* node : AllNodes()) {
    if (node->is_root()) {
      root = node;
      continue;
    }
    NodeInfo info{};
    info.id = node->id;
    info.parent = node->parent->id;
    info.begin = node->begin;
    info.end = node->end();
    info.tokens = node->tokens;
    info.kinds = node->kinds;
    info.has_state = node->has_state();
    info.salted = root != unsalted;
    info.freed_bytes = FreedBytes(node);
    info.last_use = node->last_use;
    info.children = node->children.size();
    info.leases = node->leases;
    info.pinned = node->pinned;
    list.push_back(info);
  }
  return list;
}

TreeNode* PrefixTree::FindNode(uint64_t id) const {
  const std::vector<TreeNode*> nodes = AllNodes();
  const auto it = std::find_if(nodes.begin(), nodes.end(),
                               [&](TreeNode* node) { return !node->is_root() && node->id == id; });
  return it == nodes.end() ? nullptr : *it;
}

bool PrefixTree::Drop(uint64_t id) {
  TreeNode* node = FindNode(id);
  if (node == nullptr) return false;
  if (node->pinned) CHECK(Unpin(id).ok());
  node = FindNode(id);
  if (node == nullptr) return true;
  if (node->has_state()) FreeState(node);
  TreeNode* parent = node->parent;
  if (node->children.empty() && node->leases == 0) {
    Remove(node);
    Tidy(parent);
  } else {
    Tidy(node);
  }
  return true;
}

uint64_t PrefixTree::pinned_bytes_max() const {
  return static_cast<uint64_t>(options_.pinned_share_max * static_cast<double>(options_.bytes_max));
}

// All KV of the paths, and the pinned states. It grows with no other call than Pin.
uint64_t PrefixTree::pinned_bytes() const {
  const PoolCounts held = CountPinned(pins_);
  return held.blocks * block_bytes_ + held.states * buffer_bytes_;
}

int64_t PrefixTree::pinned_tokens_max() const {
  int64_t tokens = 0;
  for (const TreeNode* pin : pins_) tokens = std::max(tokens, pin->end());
  return tokens;
}

PoolCounts PrefixTree::CountPinned(std::span<TreeNode* const> pins) const {
  std::unordered_set<const TreeNode*> nodes;
  std::unordered_set<uint32_t> blocks;
  PoolCounts held;
  for (const TreeNode* pin : pins) {
    held.states += pin->has_state();
    for (const TreeNode* node = pin; node != nullptr; node = node->parent) {
      if (!nodes.insert(node).second) break;
      for (const BlockRef& block : node->blocks) blocks.insert(block.index());
    }
  }
  held.blocks = blocks.size();
  return held;
}

// Shared are the whole blocks before the restore point that pins alone would leave: the deepest
// pinned checkpoint on the way, or, where any length can be restored, the end of what is pinned.
PoolCounts PrefixTree::PinnedCountsBeside(std::span<const Token> tokens,
                                          std::string_view salt) const {
  PoolCounts held = CountPinned(pins_);
  const TreeNode* root = FindRoot(salt);
  if (root == nullptr || block_bytes_ == 0) return held;
  std::unordered_set<const TreeNode*> usable(pins_.begin(), pins_.end());
  if (layout_.trimmable()) {
    for (const TreeNode* pin : pins_)
      for (const TreeNode* node = pin; node != nullptr; node = node->parent) usable.insert(node);
  }
  const Position at = Walk(root, tokens);
  int64_t depth = at.depth;
  for (const TreeNode* node = at.node; !node->is_root(); node = node->parent) {
    depth = std::min(depth, node->end());
    if (!usable.contains(node) || (!layout_.trimmable() && depth < node->end())) continue;
    if (layout_.trimmable()) depth = std::min<int64_t>(depth, std::ssize(tokens) - 1);
    held.blocks -= static_cast<uint64_t>(depth / kBlockTokens);
    break;
  }
  return held;
}

Status PrefixTree::CheckPin(TreeNode* node) const {
  const std::string name = "[cache] pin of node " + std::to_string(node->id);
  if (!node->has_state() && !layout_.trimmable()) {
    return InvalidArgument(name + ": it has no checkpoint");
  }
  if (pins_.size() >= options_.pins_max) {
    return ResourceExhausted(name + ": wanted at most " + std::to_string(options_.pins_max) +
                             " pins");
  }
  const double paths_max =
      options_.pinned_share_max * static_cast<double>(options_.paths_max.value_or(INT64_MAX));
  if (static_cast<double>(pins_.size() + 1) > paths_max) {
    return ResourceExhausted(name + ": pins may take at most " +
                             std::to_string(static_cast<int64_t>(paths_max)) + " of " +
                             std::to_string(*options_.paths_max) + " paths");
  }
  std::vector<TreeNode*> pins = pins_;
  pins.push_back(node);
  const auto exceeds = [&](uint64_t wanted, uint64_t max, const char* whose, uint64_t whole) {
    return ResourceExhausted(name + ": pins would hold " + std::to_string(wanted) +
                             " bytes, wanted at most " + std::to_string(max) + " of the " + whose +
                             " " + std::to_string(whole));
  };
  const PoolCounts held = CountPinned(pins);
  const uint64_t wanted = held.blocks * block_bytes_ + held.states * buffer_bytes_;
  if (wanted > pinned_bytes_max())
    return exceeds(wanted, pinned_bytes_max(), "cache's", options_.bytes_max);
  const uint64_t pages =
      held.blocks * options_.block_page_bytes + held.states * options_.state_page_bytes;
  const auto pages_max = static_cast<uint64_t>(options_.pinned_share_max *
                                               static_cast<double>(options_.page_bytes_max));
  if (pages > pages_max) return exceeds(pages, pages_max, "budget's", options_.page_bytes_max);
  return {};
}

Status PrefixTree::Pin(uint64_t id) {
  TreeNode* node = FindNode(id);
  if (node == nullptr) return NotFound("[cache] no node " + std::to_string(id));
  if (node->pinned) return {};
  RETURN_IF_ERROR(CheckPin(node));
  node->pinned = true;
  pins_.push_back(node);
  ++version_;
  Requeue(node);
  return {};
}

Status PrefixTree::Unpin(uint64_t id) {
  TreeNode* node = FindNode(id);
  if (node == nullptr) return NotFound("[cache] no node " + std::to_string(id));
  if (!node->pinned) return {};
  node->pinned = false;
  std::erase(pins_, node);
  ++version_;
  Requeue(node);
  Tidy(node);
  return {};
}

void PrefixTree::Clear() {
  for (LeaseRecord* record : leases_) {
    TreeNode* root = record->node;
    while (!root->is_root()) root = root->parent;
    RemoveLease(std::exchange(record->node, root));
    AddLease(root);
  }
  const std::vector<TreeNode*> nodes = AllNodes();
  for (size_t i = nodes.size(); i-- > 0;) {  // children before parents: no deep recursion
    if (!nodes[i]->is_root()) Remove(nodes[i]);
  }
  std::erase_if(roots_, [](const auto& root) { return root.second->leases == 0; });
  ++version_;
}

void PrefixTree::Abandon() noexcept {
  for (LeaseRecord* record : leases_) record->node = nullptr;
  leases_.clear();
  for (const auto& [salt, root] : roots_) {
    // Leaves first, by pointers set on the way down: no recursion, whatever the depth.
    for (TreeNode* node = root.get(); node != nullptr;) {
      if (node->children.empty()) {
        node = node == root.get() ? nullptr : node->parent;
        if (node != nullptr) node->children.pop_back();
      } else if (TreeNode* child = node->children.back().get(); child != nullptr) {
        child->parent = node;
        node = child;
      } else {
        node->children.pop_back();
      }
    }
  }
  roots_.clear();
  for (auto& queue : idle_leaves_) queue.clear();
  values_ = ValueQueue();
  pins_.clear();
  std::fill(block_holds_.begin(), block_holds_.end(), 0);
  block_count_ = state_count_ = leaf_count_ = reserved_blocks_ = reserved_states_ = 0;
  ++version_;
  damaged_ = false;
}

void PrefixTree::CheckQueued(const TreeNode* node) const {
  if (!node->queued) return;
  if (options_.policy == CachePolicy::kValue) {
    CHECK(node->value_key.last_request == node->last_request && node->value_key.id == node->id);
    CHECK(values_.Get(node->value_key).saved == SavedCost(node));
    CHECK(values_.Get(node->value_key).is_leaf == node->is_leaf());
  } else {
    CHECK(node->queued_use == node->last_use && node->queued_type == node->type);
  }
}

void PrefixTree::CheckInvariants() const {
  std::unordered_map<uint32_t, uint32_t> holds;
  std::unordered_map<const TreeNode*, int> leases;
  uint64_t states = 0, leaves = 0, reserved_states = 0, reserved_blocks = 0;
  size_t queued = 0, pinned = 0;
  for (const LeaseRecord* record : leases_) {
    ++leases[record->node];
    reserved_states += record->reserved_marks.size();
    reserved_blocks += record->reserved_blocks;
    CHECK(std::is_sorted(record->reserved_marks.begin(), record->reserved_marks.end()));
  }
  for (const TreeNode* node : AllNodes()) {
    CHECK(node->leases == leases[node]);
    int live = node->leases;
    for (const auto& child : node->children) live += child->live;
    CHECK(node->live == live);
    for (size_t i = 0; i < node->children.size(); ++i) {
      const TreeNode* child = node->children[i].get();
      CHECK(child->parent == node && child->begin == node->end());
      CHECK(child->last_use <= node->last_use);
      CHECK(i == 0 || node->children[i - 1]->tokens.front() < child->tokens.front());
    }
    for (const BlockRef& block : node->blocks) ++holds[block.index()];
    states += node->has_state();
    leaves += node->is_leaf();
    queued += node->queued;
    pinned += node->pinned;
    CHECK(node->queued == MayGo(node));
    CHECK(node->pinned == (std::find(pins_.begin(), pins_.end(), node) != pins_.end()));
    CHECK(!node->pinned || node->has_state() || layout_.trimmable());
    if (node->is_root()) {
      CHECK(node->begin == 0 && node->tokens.empty() && node->blocks.empty());
      CHECK(!node->has_state() && !(node->children.empty() && node->leases == 0));
      continue;
    }
    CHECK(!node->tokens.empty());
    const size_t first = static_cast<size_t>(node->begin / kBlockTokens);
    CHECK(node->blocks.size() == (block_bytes_ > 0 ? BlocksCovering(node->end()) - first : 0));
    CHECK(node->has_state() || node->kinds == 0);
    CHECK(std::is_sorted(node->taken.begin(), node->taken.end()));
    CHECK(node->taken.empty() ||
          (node->taken.front() > node->begin && node->taken.back() <= node->end()));
    CheckQueued(node);
    // On layouts that cannot be trimmed, nothing is kept that can never be restored, and nothing
    // is in pieces that need not be.
    if (layout_.trimmable() || node->has_state() || node->leases > 0) continue;
    CHECK(node->children.size() > 1);
  }
  CHECK(states == state_count_ && leaves == leaf_count_ && holds.size() == block_count_);
  for (const auto& [index, count] : holds) CHECK(block_holds_[index] == count);
  CHECK(queued ==
        values_.size() + idle_leaves_[0].size() + idle_leaves_[1].size() + idle_leaves_[2].size());
  CHECK(pinned == pins_.size());
  CHECK(reserved_states == reserved_states_ && reserved_blocks == reserved_blocks_);
  CHECK(bytes() + reserved_bytes() <= options_.bytes_max);
  CHECK(!options_.paths_max || static_cast<int64_t>(leaf_count_) <= *options_.paths_max);
}

}  // namespace cairn
