// The prompt cache for people: what it holds, what a prompt would reuse, and letting things go.
// Each call runs as one command between two steps of the engine and copies what it shows. Threads:
// from any thread but the engine's.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/token.h"
#include "cache/miss_reason.h"
#include "engine/engine.h"

namespace cairn {

struct CacheNodeView {
  uint64_t id = 0, parent = 0;  // parent 0: a root
  int64_t begin = 0, end = 0;
  std::vector<Token> preview;      // the first tokens of its run
  std::vector<const char*> kinds;  // of its checkpoint: "grid", "turn", ...
  bool has_state = false, salted = false;
  uint64_t freed_bytes = 0;  // what dropping it alone would free
  uint64_t last_use = 0;     // a counter of uses, not a time
  size_t children = 0;
  int leases = 0;
  bool pinned = false;
};

struct CacheView {
  bool enabled = false;
  uint64_t bytes = 0, bytes_max = 0, checkpoints = 0, paths = 0;
  std::optional<int64_t> paths_max;
  uint64_t evictions_bytes = 0, evictions_paths = 0;
  uint64_t pins = 0, pinned_bytes = 0, pinned_bytes_max = 0;
  std::vector<CacheNodeView> nodes;  // parents before children
};
Result<CacheView> ViewCache(Engine& engine, size_t preview_tokens_max);

// What the cache would give this prompt now. Changes nothing.
struct CacheExplanation {
  ReuseReport reuse;
  struct Checkpoint {
    int64_t position;
    std::vector<const char*> kinds;
  };
  std::vector<Checkpoint> checkpoints;  // on the prompt's path, ascending
};
Result<CacheExplanation> ExplainPrompt(Engine& engine, std::span<const Token> prompt,
                                       std::string_view salt);

Status DropNode(Engine& engine, uint64_t id);  // kNotFound
// Eviction leaves a pinned checkpoint and the KV before it alone. Errors: kNotFound;
// kInvalidArgument (the node has no checkpoint); kResourceExhausted (pins would hold too much).
Status PinNode(Engine& engine, uint64_t id);
Status UnpinNode(Engine& engine, uint64_t id);  // kNotFound
Status ClearCache(Engine& engine);

}  // namespace cairn
