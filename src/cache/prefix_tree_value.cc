// CachePolicy::kValue: what a node is worth, and what is learnt from its uses.
#include <algorithm>

#include "base/check.h"
#include "cache/prefix_tree.h"
#include "cache/prefix_tree_node.h"

namespace cairn {

constexpr uint64_t kRecordEvery = 32;  // requests
// The path that runs now is the likeliest to be asked for next, more than its class says; 1 lost up
// to 5 points where only two or three conversations fit, infinity lost half of the gain elsewhere.
constexpr double kLiveFactor = 4;

// Whether eviction may take it as an idle one. Value: each state that no live sequence has on its
// path; else leaves only, whose paths are thinned from there.
bool PrefixTree::MayGo(const TreeNode* node) const {
  if (node->is_root() || node->pinned) return false;
  if (options_.policy != CachePolicy::kValue) return node->is_leaf() && node->leases == 0;
  return node->live == 0 && (node->has_state() || node->is_leaf());
}

ReuseClass PrefixTree::ClassOf(const TreeNode* node) const {
  int behind = 0;  // checkpoints on the way to the leaf, up to where it matters
  const TreeNode* at = node;
  while (at->children.size() == 1 && behind < 3) {
    at = at->children.front().get();
    behind += at->has_state();
  }
  if (node->children.size() > 1) return {node->kinds, ReuseRole::kBranch, node->uses};
  if (!at->children.empty()) behind = 3;
  return {node->kinds, static_cast<ReuseRole>(behind), node->lineage};
}

// The replay that keeping the node's state (on layouts that can be trimmed: its KV) saves when it
// is restored.
double PrefixTree::SavedCost(const TreeNode* node) const {
  if (layout_.trimmable()) {
    const int64_t begin = node->is_leaf() ? node->begin : node->end() - 1;
    return options_.replay_cost.Of(begin, node->end());
  }
  const TreeNode* before = node->parent;
  while (!before->is_root() && !before->has_state()) before = before->parent;
  return options_.replay_cost.Of(before->end(), node->end());
}

// Bytes that letting go of a leaf, or of another node's state, gives back: what TakeState, Remove
// and the Tidy after them do.
uint64_t PrefixTree::FreedBytes(const TreeNode* node) const {
  // `upper` will be one with its child `lower`; the block at the border has two versions at most.
  const auto border = [&](const TreeNode* upper, const TreeNode* lower, const TreeNode* gone) {
    const bool merges = !upper->is_root() && upper->leases == 0 && !upper->pinned &&
                        (!layout_.trimmable() || upper->last_use == lower->last_use);
    if (!merges || upper->blocks.empty() || upper->end() % kBlockTokens == 0) return uint64_t{0};
    const BlockRef& block = upper->blocks.back();
    const bool shared = gone != nullptr && gone->blocks.front() == block;
    return block_holds_[block.index()] == 1u + shared ? block_bytes_ : 0;
  };
  uint64_t bytes = node->has_state() ? buffer_bytes_ : 0;
  if (node->children.size() > 1) return bytes;
  if (node->children.size() == 1) {
    return bytes + border(node, node->children.front().get(), nullptr);
  }
  for (const BlockRef& block : node->blocks) {
    if (block_holds_[block.index()] == 1) bytes += block_bytes_;
  }
  const TreeNode* parent = node->parent;
  if (parent->children.size() == 2 && !parent->has_state()) {
    const TreeNode* sibling = parent->children[parent->children[0].get() == node].get();
    bytes += border(parent, sibling, node);
  }
  return bytes;
}

ValueItem PrefixTree::ItemOf(TreeNode* node) const {
  return {.id = node->id,
          .node = node,
          .reuse_class = ClassOf(node),
          .last_request = node->last_request,
          .saved = SavedCost(node),
          .bytes = FreedBytes(node),
          .is_leaf = node->is_leaf()};
}

// After `node` got or lost its state: what the next states behind it save is another figure now.
void PrefixTree::RequeueBehind(TreeNode* node) {
  if (options_.policy != CachePolicy::kValue || layout_.trimmable()) return;
  std::vector<TreeNode*> open;
  const auto add_children = [&](TreeNode* at) {
    for (const auto& child : at->children) open.push_back(child.get());
  };
  add_children(node);
  while (!open.empty()) {
    TreeNode* at = open.back();
    open.pop_back();
    if (at->has_state()) {
      if (at->queued) Requeue(at);
    } else {
      add_children(at);
    }
  }
}

// A request restores at `restored`: that was worth keeping; the path in front of it was not needed
// for this one.
void PrefixTree::RecordUse(TreeNode* restored) {
  if (options_.policy != CachePolicy::kValue) return;
  for (TreeNode* node = restored; !node->is_root(); node = node->parent) {
    if (!node->has_state() && !layout_.trimmable()) continue;
    RecordWait(node, node == restored);
  }
  reuse_.Refresh();
  ++restored->uses;
}

void PrefixTree::RecordEviction(TreeNode* node) {
  if (options_.policy != CachePolicy::kValue) return;
  RecordWait(node, false);
  reuse_.Refresh();
}

void PrefixTree::RecordWait(TreeNode* node, bool hit) {
  const uint64_t age = request_clock_ - node->last_request;
  reuse_.Record(node->reuse_class, node->recorded_age, age, hit);
  node->recorded_age = age;
}

// Now and then, so that what waits for long counts before it is used or evicted.
void PrefixTree::RecordWaiting() {
  if (options_.policy != CachePolicy::kValue || request_clock_ % kRecordEvery != 0) return;
  values_.ForEach([&](const ValueItem& item) { RecordWait(item.node, false); });
  reuse_.Refresh();
}

double PrefixTree::LiveValue(const LiveVictim& victim) const {
  return kLiveFactor *
         reuse_.Rate(ClassOf(victim.node), request_clock_ - victim.node->last_request) *
         options_.replay_cost.Of(victim.position - victim.gap, victim.position) /
         static_cast<double>(buffer_bytes_);
}

double PrefixTree::IdleValue(TreeNode* node) const {
  return ValueQueue::Value(reuse_, request_clock_, values_.Get(node->value_key));
}

TreeNode* PrefixTree::ChooseValue(bool leaves_only) const {
  if (options_.chooser != nullptr) {
    std::vector<const ValueItem*> items;
    values_.ForEach([&](const ValueItem& item) {
      if (item.is_leaf || !leaves_only) items.push_back(&item);
    });
    return items.empty() ? nullptr : options_.chooser->Choose(items);
  }
  const auto victim = values_.Least(reuse_, request_clock_, leaves_only);
  return victim ? victim->node : nullptr;
}

}  // namespace cairn
