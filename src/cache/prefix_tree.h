// The prompt cache: a compressed prefix tree over token ids, one root per cache salt.
//
// A node owns a run of tokens, references to the KV blocks that cover the run, and optionally a
// state. A node with a state *is* a checkpoint: the complete, exact state after the tokens of its
// path. Neighbouring nodes share the block that their border lies in; where a path has several
// versions of a block (a branch that went on from the middle copied it), the deepest node's version
// holds all rows of the path up to that node.
//
// Start here, as the engine uses it for one sequence:
//   Match match = tree.Find(prompt, salt);           // const, cheap
//   Lease lease = tree.Acquire(match, salt);         // a use: refreshes the path, protects it
//   SequenceState state = tree.Restore(lease, ...);  // shared blocks, copied state
//   marks = tree.ReserveMarks(lease, state.blocks(), marks of this step);   // before the step
//   tree.Publish(lease, tokens[0, p), state.blocks(), buffer, ...);         // in Commit, ascending
//   tree.Publish(..., state.TakeState(), kMarkFinish, ...);  lease = {};    // at the end
//
// Bytes: block_bytes for each distinct block the tree references, shared with live sequences or
// not, plus buffer_bytes for each state. bytes() + reserved_bytes() <= bytes_max, always.
//
// Owns: references to blocks, the state buffers of checkpoints. Threads: the engine thread only,
// leases included. Invariants: CheckInvariants().
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/token.h"
#include "cache/cache_options.h"
#include "cache/eviction.h"
#include "cache/marks.h"
#include "cache/miss_reason.h"
#include "cache/reuse_model.h"
#include "cache/value_queue.h"
#include "state/block_pool.h"
#include "state/sequence_state.h"
#include "state/state_layout.h"
#include "state/state_pool.h"

namespace cairn {

struct TreeNode;
struct LeaseRecord;
class PrefixTree;

// What Find says. Valid for Acquire until the tree next changes.
struct Match {
  int64_t matched = 0;                    // m: tokens shared with the tree
  int64_t restore_point = 0;              // r <= m: tokens that need not be replayed
  std::optional<MissReason> miss_reason;  // nullopt = null: nothing better was possible
  const TreeNode* node = nullptr;         // holds position r; nullptr: r = 0
  uint64_t tree_version = 0;
};

// A live sequence's hold on its path: the nodes up to position() are neither removed nor split off,
// and eviction takes of them only inner states, and those last (lru) or
// at several times their value (value). Move-only; releases when destroyed.
// The tree outlives it.
class Lease {
 public:
  Lease();
  Lease(Lease&& other) noexcept;
  Lease& operator=(Lease&& other) noexcept;
  ~Lease();
  explicit operator bool() const { return record_ != nullptr; }
  // Tokens of the path that the tree holds for this sequence: the restore point, then the deepest
  // position it published. Clear or Drop may set it back.
  int64_t position() const;

 private:
  friend class PrefixTree;
  Lease(PrefixTree* tree, std::unique_ptr<LeaseRecord> record);
  PrefixTree* tree_ = nullptr;
  std::unique_ptr<LeaseRecord> record_;
};

enum class PublishResult {
  kPublished,  // the tree has the state now
  kKept,       // it had that state already (equal bits); the buffer was given back
  kDropped,    // no room, not even by eviction; nothing changed but what was evicted
};

// One node, for people (GET /v1/cache).
struct NodeInfo {
  uint64_t id;
  uint64_t parent;  // 0: a root
  int64_t begin, end;
  std::span<const Token> tokens;  // of the run [begin, end); valid until the tree next changes
  MarkKinds kinds;                // of its state; 0 if it has none
  bool has_state;
  bool salted;           // under a root with a cache salt, which itself is never shown
  uint64_t freed_bytes;  // what would be free if it was dropped or evicted now
  uint64_t last_use;     // a counter of uses, not a time
  size_t children;
  int leases;  // live sequences whose position is this node's end
  bool pinned;
};

struct PoolCounts {
  uint64_t blocks = 0, states = 0;
};

struct EvictionCounts {
  uint64_t bytes = 0;  // states and leaves that went for the byte limit
  uint64_t paths = 0;  // leaves that went for the path limit
};

class PrefixTree {
 public:
  PrefixTree(const StateLayout& layout, CacheOptions options);
  ~PrefixTree();  // REQUIRES: all leases are gone
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;

  // -- Lookup
  // The restore point is the deepest checkpoint inside the matched prefix. Trimmable layouts: the
  // matched length itself, or n - 1 if all n tokens matched and no hidden row is kept there.
  Match Find(std::span<const Token> tokens, std::string_view salt) const;
  // Checkpoints on the path of `tokens`, ascending, up to the whole prompt.
  std::vector<Mark> Checkpoints(std::span<const Token> tokens, std::string_view salt) const;

  // -- A sequence's life
  // REQUIRES: the tree did not change since Find.
  Lease Acquire(const Match& match, std::string_view salt);
  // For a sequence that writes but must not read (it starts at token 0).
  Lease AcquireRoot(std::string_view salt);
  // The live state at lease.position(). Errors: kResourceExhausted; nothing is held then.
  // REQUIRES: nothing was published with this lease yet.
  Result<SequenceState> Restore(const Lease& lease, BlockPool& blocks, StatePool& states) const;
  // Sets room aside for marks (ascending, all > lease.position()) that the coming step will pass;
  // returns those that got room, ascending: take taps for these and no others. Makes room by
  // eviction; prefers the deepest mark, and where only the own path is left to thin, does not take
  // a mark that closest-pair thinning would take away again. `blocks`: of the sequence, covering
  // the marks. Replaces the lease's earlier reservation.
  std::vector<Mark> ReserveMarks(Lease& lease, std::span<const BlockRef> blocks,
                                 std::span<const Mark> marks);
  void ReleaseMarks(Lease& lease);  // what was reserved and not published
  // The sequence goes on without a hold on its path, which may then be evicted like any other, and
  // publishes again from its first token. False: it held nothing.
  bool LetGoOfPath(Lease& lease);
  // Stores the state after tokens.size() tokens. `blocks` cover them (empty without KV). An empty
  // `state` (SequenceState::TakeState has none to give) is not published: kDropped. REQUIRES:
  // tokens.size() >= lease.position() and > 0; tokens begin with the lease's path. With a
  // reservation for this position it is never dropped, unless something else took the last path
  // slot. A result other than kDropped moves the lease there. A new *end* frees the path's previous
  // one if that is nothing else.
  PublishResult Publish(Lease& lease, std::span<const Token> tokens,
                        std::span<const BlockRef> blocks, StateBuffer state, MarkKinds kinds,
                        PathType type);
  // The deepest checkpoint at or before tokens.size() on this path, for WantsFinishMark.
  std::optional<int64_t> LastCheckpoint(const Lease& lease, std::span<const Token> tokens) const;

  // -- Administration
  // Frees one more thing by policy (for a pool that is out of memory). False: nothing may go.
  bool EvictOne();
  std::vector<NodeInfo> List() const;  // parents before children; roots are not listed
  // Frees the node's state, and its KV as soon as no descendant or live sequence needs it; a pin on
  // it ends. False: no such node.
  bool Drop(uint64_t id);
  // Everything, pins included; live sequences go on and publish again from their first token.
  void Clear();
  // Eviction leaves a pinned node's state and the KV of its path alone; the other states of the
  // path may go. Drop and Clear take pinned nodes too. Pinning again changes nothing. Errors:
  // kNotFound; kInvalidArgument (nothing to restore there); kResourceExhausted (pins_max,
  // pinned_share_max).
  Status Pin(uint64_t id);
  Status Unpin(uint64_t id);  // no error if it was not pinned. Errors: kNotFound
  // After an exception out of any member, which may have left things half changed: forgets all of
  // it without looking, allocates nothing. Leases stay valid to destroy and to nothing else.
  void Abandon() noexcept;
  // A lease could not be given back for lack of memory: only Abandon makes the tree whole again.
  bool damaged() const { return damaged_; }

  // -- Figures
  uint64_t bytes() const { return block_count_ * block_bytes_ + state_count_ * buffer_bytes_; }
  uint64_t reserved_bytes() const {
    return reserved_blocks_ * block_bytes_ + reserved_states_ * buffer_bytes_;
  }
  uint64_t checkpoint_count() const { return state_count_; }
  uint64_t block_count() const { return block_count_; }  // distinct
  uint64_t path_count() const { return leaf_count_; }
  size_t pin_count() const { return pins_.size(); }
  uint64_t pinned_bytes() const;  // what stays for the pins alone, counted once
  uint64_t pinned_bytes_max() const;
  // The same, counted in the pools.
  PoolCounts PinnedCounts() const { return CountPinned(pins_); }
  // Without the blocks that a sequence of these tokens shares with the pins whatever else goes.
  PoolCounts PinnedCountsBeside(std::span<const Token> tokens, std::string_view salt) const;
  int64_t pinned_tokens_max() const;             // the longest pinned path
  uint64_t version() const { return version_; }  // another one after each change
  const EvictionCounts& evictions() const { return evictions_; }
  const CacheOptions& options() const { return options_; }
  // Recomputes everything from the nodes and compares. Aborts on a difference. For tests and idle
  // moments: it walks the whole tree.
  void CheckInvariants() const;

 private:
  friend class Lease;

  struct Position {  // a place in the tree
    TreeNode* node;  // begin < depth <= end(), or a root and depth 0
    int64_t depth;
  };
  struct Need {  // what a new checkpoint adds to the tree
    uint64_t blocks = 0, states = 0;
    bool leaf = false;  // one more path
  };
  struct Candidate {  // a mark that wants room, and competes with the states of its own path
    const LeaseRecord* record;
    int64_t position;
  };
  struct HeldPath {  // of a live sequence or a pin
    TreeNode* node;
    const LeaseRecord* record;  // nullptr: a pin
  };
  struct LivePath {
    std::vector<TreeNode*> nodes;   // with a state
    std::vector<PathState> states;  // of the nodes, then of planned marks
  };
  struct LiveVictim {
    TreeNode* node;  // nullptr: the candidate itself
    int64_t gap, position;
  };

  // prefix_tree.cc
  const TreeNode* FindRoot(std::string_view salt) const;
  TreeNode* FindOrAddRoot(std::string_view salt);
  Position Walk(const TreeNode* from, std::span<const Token> tokens) const;
  std::vector<BlockRef> PathBlocks(const TreeNode* node) const;
  Lease MakeLease(TreeNode* node);
  void AddLease(TreeNode* node);
  void RemoveLease(TreeNode* node);
  void ReleaseLease(LeaseRecord& record);
  void MoveLease(LeaseRecord& record, TreeNode* node);
  bool IsHeld(const BlockRef& block) const;
  std::span<const BlockRef> RunBlocks(int64_t begin, int64_t end,
                                      std::span<const BlockRef> blocks) const;
  uint64_t CountNew(std::span<const BlockRef> blocks) const;
  void UseReservation(LeaseRecord& record, int64_t position, uint64_t blocks);
  Need NeedAt(const Position& at, std::span<const Token> tokens,
              std::span<const BlockRef> blocks) const;
  uint64_t MissingBytes(const LeaseRecord& record, int64_t position, const Need& need) const;
  bool OverPaths() const;
  bool HasRoom(const LeaseRecord& record, int64_t position, const Need& need) const;
  bool Fits(uint64_t bytes_more) const;
  TreeNode* InsertAt(const Position& at, std::span<const Token> tokens,
                     std::span<const BlockRef> blocks, PathType type);
  void SupersedeEnd(const TreeNode* end);

  // prefix_tree_nodes.cc: the only places that change nodes
  TreeNode* Split(TreeNode* node, int64_t position);
  TreeNode* AddLeaf(TreeNode* parent, std::span<const Token> tokens,
                    std::span<const BlockRef> blocks, PathType type);
  void SetState(TreeNode* node, StateBuffer state);
  void FreeState(TreeNode* node);
  void Touch(TreeNode* node);
  void Tidy(TreeNode* node);
  void MergeWithChild(TreeNode* node);
  void Remove(TreeNode* node);
  void HoldBlock(const BlockRef& block);
  void LetGoBlock(const BlockRef& block);
  void Requeue(TreeNode* node);
  void Unqueue(TreeNode* node);

  // prefix_tree_evict.cc
  bool MakeRoom(uint64_t bytes_more, const Candidate& candidate);
  bool CouldFit(uint64_t bytes_more, const std::optional<Candidate>& candidate) const;
  bool EvictNext(const std::optional<Candidate>& candidate);
  bool EvictIdle();
  bool EvictValue(const std::optional<Candidate>& candidate);
  void EvictLeaf(TreeNode* leaf);
  bool EvictPath();
  TreeNode* OldestIdleLeaf() const;
  void TakeState(TreeNode* node);
  std::vector<HeldPath> HeldPaths() const;
  std::vector<LivePath> LivePaths(const std::optional<Candidate>& candidate) const;
  std::optional<LiveVictim> ChooseLive(const std::optional<Candidate>& candidate) const;

  // prefix_tree_value.cc
  bool MayGo(const TreeNode* node) const;
  ReuseClass ClassOf(const TreeNode* node) const;
  double SavedCost(const TreeNode* node) const;
  uint64_t FreedBytes(const TreeNode* node) const;
  ValueItem ItemOf(TreeNode* node) const;
  void RequeueBehind(TreeNode* node);
  void RecordUse(TreeNode* restored);
  void RecordEviction(TreeNode* node);
  void RecordWait(TreeNode* node, bool hit);
  void RecordWaiting();
  double LiveValue(const LiveVictim& victim) const;
  double IdleValue(TreeNode* node) const;
  TreeNode* ChooseValue(bool leaves_only) const;

  // prefix_tree_admin.cc
  std::vector<TreeNode*> AllNodes() const;  // parents before children, roots included
  TreeNode* FindNode(uint64_t id) const;
  void CheckQueued(const TreeNode* node) const;
  Status CheckPin(TreeNode* node) const;
  PoolCounts CountPinned(std::span<TreeNode* const> pins) const;

  const StateLayout layout_;
  const CacheOptions options_;
  const uint64_t block_bytes_, buffer_bytes_;
  std::map<std::string, std::unique_ptr<TreeNode>, std::less<>> roots_;
  std::vector<uint32_t> block_holds_;  // by block index: references from nodes
  uint64_t block_count_ = 0, state_count_ = 0, leaf_count_ = 0;
  uint64_t reserved_blocks_ = 0, reserved_states_ = 0;
  std::vector<LeaseRecord*> leases_;
  std::vector<TreeNode*> pins_;
  // Leaves without a lease, oldest use first, by type.
  std::array<std::set<std::pair<uint64_t, TreeNode*>>, kPathTypes> idle_leaves_;
  ReuseModel reuse_;   // with CachePolicy::kValue
  ValueQueue values_;  // what may go, but for live paths
  uint64_t request_clock_ = 0;
  uint64_t use_clock_ = 0, next_id_ = 1, version_ = 0;
  EvictionCounts evictions_;
  bool damaged_ = false;
};

}  // namespace cairn
