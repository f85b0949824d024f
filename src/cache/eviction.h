// What goes first when the cache is full: pure policy, plain data in, a choice out.
//
// A path is the way from a root to a leaf. Order (lru): the least recently used leaf's path, and of
// it only what no more recently used or live path shares: first its inner states by closest pair,
// then the leaf. Live paths come last, and of them only inner states, again by closest pair.
// lru-type chooses the leaf by type first.
//
// Threads: free functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "cache/cache_options.h"

namespace cairn {

struct ValueItem;
struct TreeNode;

// Decides in the place of CachePolicy::kValue: for a program that knows more than a cache can, such
// as the simulator's bound.
class VictimChooser {
 public:
  virtual ~VictimChooser() = default;
  // The node that goes, of `items` (not empty, in no particular but a deterministic order).
  virtual TreeNode* Choose(std::span<const ValueItem* const> items) = 0;
};

// What a position of a prompt is, for CachePolicy::kLruType.
enum class PathType : uint8_t { kAssistant, kUser, kSystem };  // in the order they are evicted
inline constexpr int kPathTypes = 3;

// The type of the position after `position` tokens. System: up to the system part's end. Assistant:
// raw prompts, the template tail and the generation. User: the rest.
PathType PathTypeAt(int64_t position, int64_t system_end, int64_t tail_begin, bool raw);

// One queue of idle leaves per type: its length, and the use stamp of its oldest leaf.
struct LeafQueue {
  size_t length = 0;
  uint64_t oldest_use = 0;
};

// The queue whose oldest leaf goes; nullopt if all are empty. kLru: the oldest of all. kLruType:
// the first type that is not empty and at least as long as the next type's, else system.
std::optional<PathType> ChooseQueue(const std::array<LeafQueue, kPathTypes>& queues,
                                    CachePolicy policy);

// A state of one path, in order of position.
struct PathState {
  int64_t position;
  bool may_go;  // not shared with a more recent path, no branch node, not pinned
};

struct ClosestPair {
  size_t deeper;  // index of the state that goes
  int64_t gap;    // tokens to the state before it
};

// Of the pairs of neighbouring states whose deeper one may go and is not the path's deepest, the
// closest; ties: the shallowest. The path's first state is never the deeper of a pair. nullopt:
// nothing may go.
std::optional<ClosestPair> ChooseInnerState(std::span<const PathState> path);

}  // namespace cairn
