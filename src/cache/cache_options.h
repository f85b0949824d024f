// Limits and policy of the prompt cache. Threads: plain data.
#pragma once

#include <cstdint>
#include <optional>

namespace cairn {

enum class CachePolicy { kLru, kLruType };

struct CacheOptions {
  int64_t stride = 2048;             // --prefill-step-size: grid marks
  std::optional<int64_t> paths_max;  // --prompt-cache-size: retained leaves; 0 = off
  uint64_t bytes_max =
      0;  // --prompt-cache-bytes: states + KV reachable from the tree, counted once; 0 = off
  CachePolicy policy = CachePolicy::kLru;
  bool enabled() const { return bytes_max > 0 && paths_max.value_or(1) > 0; }
};

}  // namespace cairn
