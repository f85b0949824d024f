// Limits and policy of the prompt cache. Threads: plain data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace cairn {

enum class CachePolicy { kValue, kLru, kLruType };

// What it costs to compute the token at position t again: per_token + t * per_token_position, in
// units of which only the ratio counts.
struct ReplayCost {
  double per_token = 1;
  double per_token_position = 0;  // attention looks at all tokens before
  double Of(int64_t begin, int64_t end) const {
    const double b = static_cast<double>(begin), e = static_cast<double>(end);
    return per_token * (e - b) + per_token_position * (e * e - b * b) / 2;
  }
};

class VictimChooser;

// A planted fault, so that the property test can show that it would notice one. Only tests set it.
enum class CacheFault {
  kNone,
  // A restore takes the shallowest version of a border block instead of the deepest: one stale
  // block, with rows of another branch, is reused.
  kStaleBlock,
};

struct CacheOptions {
  int64_t stride = 2048;             // --prefill-step-size: grid marks
  std::optional<int64_t> paths_max;  // --prompt-cache-size: retained leaves; 0 = off
  uint64_t bytes_max =
      0;  // --prompt-cache-bytes: states + KV reachable from the tree, counted once; 0 = off
  CachePolicy policy = CachePolicy::kValue;
  ReplayCost replay_cost;            // for kValue
  VictimChooser* chooser = nullptr;  // decides in kValue's place: for programs that know the future
  double pinned_share_max = 0.5;     // pins may hold this share of bytes_max and of paths_max
  // What a block and a state weigh in whole pages, and the memory budget that counts them so: pins
  // may hold that share of it too.
  uint64_t block_page_bytes = 0, state_page_bytes = 0, page_bytes_max = UINT64_MAX;
  size_t pins_max = 256;
  CacheFault fault = CacheFault::kNone;
  bool enabled() const { return bytes_max > 0 && paths_max.value_or(1) > 0; }
};

}  // namespace cairn
