// The changes that nodes undergo: each keeps the counts, the queues of idle leaves and the tree's
// shape right by itself.
#include <algorithm>

#include "base/check.h"
#include "cache/prefix_tree.h"
#include "cache/prefix_tree_node.h"

namespace cairn {

size_t TreeNode::ChildIndex(Token token) const {
  const auto it = std::lower_bound(
      children.begin(), children.end(), token,
      [](const std::unique_ptr<TreeNode>& child, Token t) { return child->tokens.front() < t; });
  return static_cast<size_t>(it - children.begin());
}

TreeNode* TreeNode::Child(Token token) const {
  const size_t i = ChildIndex(token);
  if (i == children.size() || children[i]->tokens.front() != token) return nullptr;
  return children[i].get();
}

void PrefixTree::HoldBlock(const BlockRef& block) {
  if (block_holds_.size() <= block.index()) block_holds_.resize(block.index() + 1, 0);
  if (block_holds_[block.index()]++ == 0) ++block_count_;
}

void PrefixTree::LetGoBlock(const BlockRef& block) {
  if (--block_holds_[block.index()] == 0) --block_count_;
}

void PrefixTree::Unqueue(TreeNode* node) {
  if (!node->queued) return;
  node->queued = false;
  if (options_.policy == CachePolicy::kValue) {
    values_.Erase(node->value_key);
  } else {
    idle_leaves_[static_cast<int>(node->queued_type)].erase({node->queued_use, node});
  }
}

// After a change of what the queues go by. Without memory for it the node is in no queue, and says
// so: leases on a half changed tree are still given back.
void PrefixTree::Requeue(TreeNode* node) {
  Unqueue(node);
  if (!MayGo(node)) return;
  if (options_.policy == CachePolicy::kValue) {
    node->value_key = values_.Insert(ItemOf(node));
  } else {
    node->queued_use = node->last_use;
    node->queued_type = node->type;
    idle_leaves_[static_cast<int>(node->type)].emplace(node->last_use, node);
  }
  node->queued = true;
}

// The old node keeps the lower part, with its state, children, leases and id; the new upper node
// [begin, position) is returned. Both reference the block that `position` lies in.
TreeNode* PrefixTree::Split(TreeNode* node, int64_t position) {
  CHECK(node->begin < position && position < node->end());
  const size_t slot = node->parent->ChildIndex(node->tokens.front());
  auto upper = std::make_unique<TreeNode>();
  upper->parent = node->parent;
  upper->id = next_id_++;
  upper->begin = node->begin;
  upper->type = node->type;
  upper->last_use = node->last_use;
  upper->live = node->live;
  upper->lineage = node->lineage;
  upper->last_request = node->last_request;
  upper->recorded_age = node->recorded_age;
  upper->reuse_class = node->reuse_class;
  const auto cut = node->tokens.begin() + (position - node->begin);
  upper->tokens.assign(node->tokens.begin(), cut);
  node->tokens.erase(node->tokens.begin(), cut);
  const auto taken_cut = std::upper_bound(node->taken.begin(), node->taken.end(), position);
  upper->taken.assign(node->taken.begin(), taken_cut);
  node->taken.erase(node->taken.begin(), taken_cut);
  if (block_bytes_ > 0) {
    const size_t first = static_cast<size_t>(node->begin / kBlockTokens);
    upper->blocks.assign(node->blocks.begin(),
                         node->blocks.begin() + (BlocksCovering(position) - first));
    node->blocks.erase(node->blocks.begin(),
                       node->blocks.begin() + (position / kBlockTokens - first));
    if (position % kBlockTokens != 0) HoldBlock(node->blocks.front());
  }
  node->begin = position;
  node->parent = upper.get();
  TreeNode* result = upper.get();
  result->children.push_back(std::exchange(result->parent->children[slot], std::move(upper)));
  Requeue(node);
  ++version_;
  return result;
}

TreeNode* PrefixTree::AddLeaf(TreeNode* parent, std::span<const Token> tokens,
                              std::span<const BlockRef> blocks, PathType type) {
  auto leaf = std::make_unique<TreeNode>();
  leaf->parent = parent;
  leaf->id = next_id_++;
  leaf->begin = parent->end();
  leaf->tokens.assign(tokens.begin(), tokens.end());
  leaf->blocks.assign(blocks.begin(), blocks.end());
  leaf->type = type;
  for (const BlockRef& block : leaf->blocks) HoldBlock(block);
  if (!parent->is_leaf()) ++leaf_count_;
  TreeNode* result = leaf.get();
  parent->children.insert(parent->children.begin() + parent->ChildIndex(tokens.front()),
                          std::move(leaf));
  Requeue(parent);
  Requeue(result);
  ++version_;
  return result;
}

void PrefixTree::SetState(TreeNode* node, StateBuffer state) {
  CHECK(!node->has_state() && state);
  node->state = std::move(state);
  ++state_count_;
  std::erase(node->taken, node->end());
  Requeue(node);
  RequeueBehind(node);
  ++version_;
}

void PrefixTree::FreeState(TreeNode* node) {
  CHECK(node->has_state());
  node->state = StateBuffer();
  node->kinds = 0;
  --state_count_;
  Requeue(node);
  RequeueBehind(node);
  ++version_;
}

void PrefixTree::Touch(TreeNode* node) {
  const uint64_t now = ++use_clock_;
  for (TreeNode* at = node; at != nullptr; at = at->parent) {
    at->last_use = now;
    at->last_request = request_clock_;
    at->recorded_age = 0;
    at->reuse_class = ClassOf(at);
    if (at->queued) Requeue(at);
  }
}

// After a node lost its state, its lease or a child: takes away what is of no use any more. On
// layouts that cannot be trimmed, KV behind the last state can never be restored.
void PrefixTree::Tidy(TreeNode* node) {
  while (!node->is_root() && node->leases == 0 && !node->pinned && !node->has_state()) {
    if (!node->children.empty()) {
      if (node->children.size() == 1) MergeWithChild(node);
      return;
    }
    if (layout_.trimmable()) return;
    TreeNode* parent = node->parent;
    Remove(node);
    node = parent;
  }
  if (node->is_root() && node->children.empty() && node->leases == 0) {
    std::erase_if(roots_, [&](const auto& root) { return root.second.get() == node; });
    ++version_;
  }
}

// The child survives and takes the node's run in front of its own. Where every length can be
// restored, nodes of different last use stay apart: the upper one was wanted without the lower.
void PrefixTree::MergeWithChild(TreeNode* node) {
  TreeNode* child = node->children.front().get();
  if (layout_.trimmable() && node->last_use != child->last_use) return;
  child->tokens.insert(child->tokens.begin(), node->tokens.begin(), node->tokens.end());
  child->taken.insert(child->taken.begin(), node->taken.begin(), node->taken.end());
  if (!node->blocks.empty() && node->end() % kBlockTokens != 0) {
    LetGoBlock(node->blocks.back());  // the child's version has all its rows
    node->blocks.pop_back();
  }
  child->blocks.insert(child->blocks.begin(), node->blocks.begin(), node->blocks.end());
  child->begin = node->begin;
  TreeNode* parent = node->parent;
  child->parent = parent;
  std::unique_ptr<TreeNode> kept = std::move(node->children.front());
  Unqueue(node);
  parent->children[parent->ChildIndex(kept->tokens.front())] = std::move(kept);  // node is gone
  Requeue(child);
  ++version_;
}

void PrefixTree::Remove(TreeNode* node) {
  CHECK(node->is_leaf() && node->leases == 0);
  if (node->pinned) std::erase(pins_, node);
  if (node->has_state()) FreeState(node);
  for (const BlockRef& block : node->blocks) LetGoBlock(block);
  node->blocks.clear();
  Unqueue(node);
  TreeNode* parent = node->parent;
  parent->children.erase(parent->children.begin() + parent->ChildIndex(node->tokens.front()));
  if (!parent->is_leaf()) --leaf_count_;
  Requeue(parent);
  ++version_;
}

}  // namespace cairn
