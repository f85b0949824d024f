// Replays a trace through the real prefix tree, marks and eviction, without a model: states and KV
// are memory of the right relative size that nobody looks at.
//
// Threads: free functions, one thread each call.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/status.h"
#include "cache/cache_options.h"
#include "cache/sim/trace.h"

namespace cairn {

// Sizes of the model that the trace is replayed for. The default is the 0.8B shape of Qwen3.5.
struct SimShape {
  uint64_t kv_bytes_per_token = 12288;
  uint64_t state_bytes = 20205568;  // 0: a layout of KV only
  ReplayCost cost = {1, 1.5e-5};
};

enum class SimPolicy { kValue, kLru, kLruType, kGridOnly, kFuture };
const char* SimPolicyName(SimPolicy policy);
std::optional<SimPolicy> ParseSimPolicy(std::string_view name);

struct ReplayOptions {
  SimShape shape;
  SimPolicy policy = SimPolicy::kValue;
  std::optional<uint64_t> bytes_max;  // of the real shape; nullopt: an infinite cache
  int64_t stride = 2048;
  int64_t step_rows = 512;
  bool check_each_request = false;  // PrefixTree::CheckInvariants
};

struct ReplayFigures {
  int64_t requests = 0;
  int64_t prompt_tokens = 0, reused_tokens = 0;
  double replay_cost = 0, total_cost = 0;  // SimShape::cost of replayed and of all prompt tokens
  uint64_t bytes = 0;                      // at the end, of the real shape
  uint64_t bytes_most = 0;                 // largest at any time
  uint64_t evictions = 0;
  int64_t evicted_reasons = 0;          // requests whose miss reason is `evicted`
  double seconds = 0;                   // wall time of the replay
  std::vector<int64_t> restore_points;  // one a request
  int64_t replayed_tokens() const { return prompt_tokens - reused_tokens; }
  double hit_rate() const {
    return prompt_tokens > 0
               ? static_cast<double>(reused_tokens) / static_cast<double>(prompt_tokens)
               : 0;
  }
};

// Errors: kResourceExhausted (no address space).
Result<ReplayFigures> Replay(const Trace& trace, const ReplayOptions& options);

}  // namespace cairn
