#include "cache/prefix_tree.h"

#include <algorithm>

#include "base/check.h"
#include "cache/prefix_tree_node.h"

namespace cairn {

constexpr int64_t kTooShortTokens = 64;

PrefixTree::PrefixTree(const StateLayout& layout, CacheOptions options)
    : layout_(layout),
      options_(options),
      block_bytes_(layout.block_bytes()),
      buffer_bytes_(layout.buffer_bytes()) {}

PrefixTree::~PrefixTree() {
  CHECK(leases_.empty());
  Clear();
}

// -- Lookup

const TreeNode* PrefixTree::FindRoot(std::string_view salt) const {
  const auto it = roots_.find(salt);
  return it == roots_.end() ? nullptr : it->second.get();
}

PrefixTree::Position PrefixTree::Walk(const TreeNode* from, std::span<const Token> tokens) const {
  // Positions are handed to functions that change nodes; looking up does not.
  Position at{const_cast<TreeNode*>(from), from->end()};
  while (at.depth == at.node->end() && at.depth < static_cast<int64_t>(tokens.size())) {
    const std::span<const Token> rest = tokens.subspan(at.depth);
    TreeNode* child = at.node->Child(rest.front());
    if (child == nullptr) break;
    const size_t count = std::min(rest.size(), child->tokens.size());
    const auto differ =
        std::mismatch(rest.begin(), rest.begin() + count, child->tokens.begin()).first;
    at = {child, at.depth + (differ - rest.begin())};
  }
  return at;
}

Match PrefixTree::Find(std::span<const Token> tokens, std::string_view salt) const {
  Match match;
  match.tree_version = version_;
  const TreeNode* root = FindRoot(salt);
  if (root == nullptr || root->children.empty()) {
    match.miss_reason = MissReason::kEmptyCache;
    return match;
  }
  const Position at = Walk(root, tokens);
  const int64_t m = match.matched = at.depth;
  if (m == 0) {
    match.miss_reason = MissReason::kNoSharedPrefix;
    return match;
  }
  const TreeNode* node = at.node;
  const bool state_at_m = node->end() == m && node->has_state();
  if (layout_.trimmable()) {
    const bool all = m == static_cast<int64_t>(tokens.size());
    match.restore_point = all && !state_at_m ? m - 1 : m;
    while (node->begin >= match.restore_point && !node->is_root()) node = node->parent;
    match.node = node->is_root() ? nullptr : node;
    return match;
  }
  bool taken = false;  // a state in (r, m] went by eviction
  while (!node->is_root() && !(node->end() <= m && node->has_state())) {
    taken |= !node->taken.empty() && node->taken.front() <= m;
    node = node->parent;
  }
  match.restore_point = node->end();
  if (match.restore_point > 0) match.node = node;
  if (match.restore_point == m) return match;
  match.miss_reason = taken                     ? MissReason::kEvicted
                      : match.restore_point > 0 ? MissReason::kBetweenCheckpoints
                      : m < kTooShortTokens     ? MissReason::kTooShort
                                                : MissReason::kNoCheckpointBeforeDivergence;
  return match;
}

std::vector<Mark> PrefixTree::Checkpoints(std::span<const Token> tokens,
                                          std::string_view salt) const {
  std::vector<Mark> marks;
  const TreeNode* root = FindRoot(salt);
  if (root == nullptr) return marks;
  const Position at = Walk(root, tokens);
  for (const TreeNode* node = at.node; !node->is_root(); node = node->parent) {
    if (node->end() <= at.depth && node->has_state()) marks.push_back({node->end(), node->kinds});
  }
  std::reverse(marks.begin(), marks.end());
  return marks;
}

std::optional<int64_t> PrefixTree::LastCheckpoint(const Lease& lease,
                                                  std::span<const Token> tokens) const {
  const Position at = Walk(lease.record_->node, tokens);
  for (const TreeNode* node = at.node; !node->is_root(); node = node->parent) {
    if (node->end() <= at.depth && node->has_state()) return node->end();
  }
  return std::nullopt;
}

// -- Leases

Lease::Lease() = default;
Lease::Lease(PrefixTree* tree, std::unique_ptr<LeaseRecord> record)
    : tree_(tree), record_(std::move(record)) {}
Lease::Lease(Lease&& other) noexcept
    : tree_(std::exchange(other.tree_, nullptr)), record_(std::move(other.record_)) {}
Lease& Lease::operator=(Lease&& other) noexcept {
  Lease taken(std::move(other));
  std::swap(tree_, taken.tree_);
  std::swap(record_, taken.record_);
  return *this;
}
Lease::~Lease() {
  if (record_ == nullptr || record_->node == nullptr) return;  // none, or the tree was abandoned
  try {
    tree_->ReleaseLease(*record_);
  } catch (...) {
    tree_->damaged_ = true;
  }
}
int64_t Lease::position() const { return record_->node->end(); }

TreeNode* PrefixTree::FindOrAddRoot(std::string_view salt) {
  const auto it = roots_.find(salt);
  if (it != roots_.end()) return it->second.get();
  return roots_.emplace(std::string(salt), std::make_unique<TreeNode>()).first->second.get();
}

void PrefixTree::AddLease(TreeNode* node) {
  ++node->leases;
  for (; node != nullptr; node = node->parent) {
    ++node->live;
    Requeue(node);
  }
}

void PrefixTree::RemoveLease(TreeNode* node) {
  --node->leases;
  for (; node != nullptr; node = node->parent) {
    --node->live;
    Requeue(node);
  }
}

Lease PrefixTree::MakeLease(TreeNode* node) {
  auto record = std::make_unique<LeaseRecord>();
  record->node = node;
  AddLease(node);
  leases_.push_back(record.get());
  return Lease(this, std::move(record));
}

Lease PrefixTree::Acquire(const Match& match, std::string_view salt) {
  CHECK(match.tree_version == version_);
  if (match.node == nullptr) return AcquireRoot(salt);
  TreeNode* node = const_cast<TreeNode*>(match.node);  // the tree is ours to change
  if (match.restore_point < node->end()) node = Split(node, match.restore_point);
  ++request_clock_;
  RecordWaiting();
  RecordUse(node);
  Touch(node);
  Lease lease = MakeLease(node);
  lease.record_->lineage = node->lineage + (node->children.size() > 1 ? 0 : 1);
  return lease;
}

Lease PrefixTree::AcquireRoot(std::string_view salt) {
  ++request_clock_;
  RecordWaiting();
  return MakeLease(FindOrAddRoot(salt));
}

void PrefixTree::ReleaseLease(LeaseRecord& record) {
  reserved_states_ -= record.reserved_marks.size();
  reserved_blocks_ -= record.reserved_blocks;
  std::erase(leases_, &record);
  RemoveLease(record.node);
  Tidy(record.node);
}

void PrefixTree::MoveLease(LeaseRecord& record, TreeNode* node) {
  TreeNode* before = std::exchange(record.node, node);
  AddLease(node);
  RemoveLease(before);
  Tidy(before);
}

bool PrefixTree::LetGoOfPath(Lease& lease) {
  LeaseRecord& record = *lease.record_;
  if (record.node->is_root()) return false;
  ReleaseMarks(lease);
  TreeNode* root = record.node;
  while (!root->is_root()) root = root->parent;
  MoveLease(record, root);
  return true;
}

// Deepest version first: it holds all rows of the path up to its node's end.
std::vector<BlockRef> PrefixTree::PathBlocks(const TreeNode* node) const {
  std::vector<BlockRef> path(block_bytes_ > 0 ? BlocksCovering(node->end()) : 0);
  for (; !node->is_root(); node = node->parent) {
    const size_t first = static_cast<size_t>(node->begin / kBlockTokens);
    for (size_t i = 0; i < node->blocks.size(); ++i) {
      BlockRef& block = path[first + i];
      if (!block || options_.fault == CacheFault::kStaleBlock) block = node->blocks[i];
    }
  }
  return path;
}

Result<SequenceState> PrefixTree::Restore(const Lease& lease, BlockPool& blocks,
                                          StatePool& states) const {
  const TreeNode* node = lease.record_->node;
  if (node->is_root()) return SequenceState::Create(blocks, states);
  CHECK(node->has_state() || layout_.trimmable());
  std::span<const std::byte> state;
  if (node->has_state()) state = {node->state.data(), buffer_bytes_};
  return SequenceState::Restore(blocks, states, node->end(), PathBlocks(node), state);
}

// -- Writing

PrefixTree::Need PrefixTree::NeedAt(const Position& at, std::span<const Token> tokens,
                                    std::span<const BlockRef> blocks) const {
  const int64_t p = static_cast<int64_t>(tokens.size());
  Need need;
  need.states = !(at.depth == p && at.node->end() == p && at.node->has_state());
  if (at.depth == p) return need;
  need.leaf = at.depth < at.node->end() || !at.node->is_leaf();
  need.blocks = CountNew(RunBlocks(at.depth, p, blocks));
  return need;
}

bool PrefixTree::IsHeld(const BlockRef& block) const {
  return block.index() < block_holds_.size() && block_holds_[block.index()] > 0;
}

uint64_t PrefixTree::CountNew(std::span<const BlockRef> blocks) const {
  return static_cast<uint64_t>(std::count_if(
      blocks.begin(), blocks.end(), [&](const BlockRef& block) { return !IsHeld(block); }));
}

// The blocks of a sequence in which positions [begin, end) lie.
std::span<const BlockRef> PrefixTree::RunBlocks(int64_t begin, int64_t end,
                                                std::span<const BlockRef> blocks) const {
  if (block_bytes_ == 0) return {};
  const size_t first = static_cast<size_t>(begin / kBlockTokens);
  return blocks.subspan(first, BlocksCovering(end) - first);
}

std::vector<Mark> PrefixTree::ReserveMarks(Lease& lease, std::span<const BlockRef> blocks,
                                           std::span<const Mark> marks) {
  ReleaseMarks(lease);
  LeaseRecord& record = *lease.record_;
  std::vector<Mark> got;
  for (size_t i = marks.size(); i-- > 0;) {
    const int64_t p = marks[i].position;
    CHECK(p > lease.position());
    // The deepest brings the KV of the others with it.
    const uint64_t block_count = got.empty() ? CountNew(RunBlocks(lease.position(), p, blocks)) : 0;
    const Candidate candidate{&record, p};
    if (!MakeRoom(block_count * block_bytes_ + buffer_bytes_, candidate)) continue;
    record.reserved_marks.insert(record.reserved_marks.begin(), p);
    record.reserved_blocks += block_count;
    reserved_blocks_ += block_count;
    ++reserved_states_;
    got.insert(got.begin(), marks[i]);
  }
  return got;
}

void PrefixTree::ReleaseMarks(Lease& lease) {
  LeaseRecord& record = *lease.record_;
  reserved_states_ -= record.reserved_marks.size();
  reserved_blocks_ -= record.reserved_blocks;
  record.reserved_marks.clear();
  record.reserved_blocks = 0;
}

// Gives back what was set aside for a mark that is being published, and the KV that comes with it.
void PrefixTree::UseReservation(LeaseRecord& record, int64_t position, uint64_t blocks) {
  reserved_states_ -= std::erase(record.reserved_marks, position);
  if (record.reserved_marks.empty()) blocks = record.reserved_blocks;
  blocks = std::min(blocks, record.reserved_blocks);
  record.reserved_blocks -= blocks;
  reserved_blocks_ -= blocks;
}

PublishResult PrefixTree::Publish(Lease& lease, std::span<const Token> tokens,
                                  std::span<const BlockRef> blocks, StateBuffer state,
                                  MarkKinds kinds, PathType type) {
  LeaseRecord& record = *lease.record_;
  const int64_t p = static_cast<int64_t>(tokens.size());
  CHECK(p > 0 && p >= lease.position());
  if (!state) return PublishResult::kDropped;
  Position at = Walk(record.node, tokens);
  Need need = NeedAt(at, tokens, blocks);
  const bool hopeless =
      !HasRoom(record, p, need) && !CouldFit(MissingBytes(record, p, need), Candidate{&record, p});
  // Each round evicts something, which may be on the way we walked: look again.
  while (!HasRoom(record, p, need)) {
    const bool evicted =
        !hopeless && (need.leaf && OverPaths() ? EvictPath() : EvictNext(Candidate{&record, p}));
    if (!evicted) {
      UseReservation(record, p, 0);
      return PublishResult::kDropped;
    }
    at = Walk(record.node, tokens);
    need = NeedAt(at, tokens, blocks);
  }
  UseReservation(record, p, need.blocks);
  TreeNode* node = InsertAt(at, tokens, blocks, type);
  if (need.states > 0) SetState(node, std::move(state));
  node->kinds |= kinds;
  node->type = type;
  node->lineage = std::max(node->lineage, record.lineage);
  MoveLease(record, node);
  Touch(node);
  if (kinds & kMarkEnd) SupersedeEnd(node);
  return need.states > 0 ? PublishResult::kPublished : PublishResult::kKept;
}

bool PrefixTree::OverPaths() const {
  return options_.paths_max && static_cast<int64_t>(leaf_count_) >= *options_.paths_max;
}

// Bytes that publishing at `position` adds beyond what was set aside for it.
uint64_t PrefixTree::MissingBytes(const LeaseRecord& record, int64_t position,
                                  const Need& need) const {
  const bool reserved = std::find(record.reserved_marks.begin(), record.reserved_marks.end(),
                                  position) != record.reserved_marks.end();
  const uint64_t blocks = need.blocks - std::min(need.blocks, record.reserved_blocks);
  return blocks * block_bytes_ + (reserved ? 0 : need.states * buffer_bytes_);
}

bool PrefixTree::HasRoom(const LeaseRecord& record, int64_t position, const Need& need) const {
  const bool nothing_new = need.blocks == 0 && need.states == 0;
  return nothing_new || (!(need.leaf && OverPaths()) && Fits(MissingBytes(record, position, need)));
}

bool PrefixTree::Fits(uint64_t bytes_more) const {
  const uint64_t used = bytes() + reserved_bytes();
  return bytes_more == 0 || (used <= options_.bytes_max && bytes_more <= options_.bytes_max - used);
}

TreeNode* PrefixTree::InsertAt(const Position& at, std::span<const Token> tokens,
                               std::span<const BlockRef> blocks, PathType type) {
  const int64_t p = static_cast<int64_t>(tokens.size());
  TreeNode* node = at.node;
  if (at.depth < node->end()) node = Split(node, at.depth);
  if (at.depth == p) return node;
  return AddLeaf(node, tokens.subspan(at.depth), RunBlocks(at.depth, p, blocks), type);
}

void PrefixTree::SupersedeEnd(const TreeNode* end) {
  TreeNode* before = end->parent;
  while (!before->is_root() && (before->kinds & kMarkEnd) == 0) before = before->parent;
  if (before->kinds != kMarkEnd || before->children.size() > 1 || before->leases > 0 ||
      before->pinned) {
    return;
  }
  FreeState(before);
  Tidy(before);
}

}  // namespace cairn
