// The engine: one thread owns every sequence, the prefix tree and all pools, and runs steps:
//   Admit -> Plan -> Prepare -> Forward -> Sample -> Commit -> Emit.
// Start here: EngineCore::Step in engine_core.cc reads in that order.
//
// Threads: Create, Submit, Run, gauges and the destructor from any thread. All else happens on the
// engine thread (worker 0 of the pool). Invariants: only Commit mutates sequences, tree and blocks;
// a failed Prepare changes nothing; free + held == total in every pool.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "cache/cache_options.h"
#include "engine/cost_model.h"
#include "engine/request.h"
#include "engine/token_stream.h"
#include "kernels/kernel_context.h"
#include "model/model.h"

namespace cairn {

// Faults that a test plants to see that the law's tests catch them (CacheOptions::fault is
// another).
struct TestFaults {
  bool random_by_slot = false;  // random numbers by the place in the batch, not by (seed, position)
  uint64_t throwing_step = 0;   // this one, from 1, throws in Forward; 0: none does
  bool recovery_throws = false;  // and so does the recovery from it
};

struct EngineOptions {
  int threads = 1;
  CpuLevel cpu_level = CpuLevel::kScalar;
  CacheOptions cache;                    // cache/cache_options.h: limits, policy, stride
  int decode_concurrency = 32;           // sequences that decode or prefill at once
  int prompt_concurrency = 8;            // of them in prefill
  int queue_limit = 512;                 // waiting requests; one more is kResourceExhausted
  int step_rows_max = 512;               // rows of one step
  int logit_rows_max = 64;               // rows with logits in one step (>= decode_concurrency)
  uint64_t live_bytes_max = UINT64_MAX;  // private memory of live sequences (blocks + state
                                         // buffers); beyond it the youngest is preempted
  // All memory: weights, scratch and the rest of the process (fixed), live sequences and the cache.
  uint64_t memory_budget = UINT64_MAX;
  uint64_t other_bytes = 0;  // of the process beside weights and scratch, as measured after loading
  // Resident memory of the process, asked every 64 steps, or each second in which there is one:
  // what it has beyond the sum of all these is counted as `other` from then on, and the cache gives
  // way. Must not allocate. 0: not known just now. Empty: never.
  std::function<uint64_t()> resident_bytes = {};
  // How long a step may take while streams run; here: no limit.
  StepTarget step_target = {.factor = 0, .floor_ms = std::numeric_limits<double>::infinity()};
  // Time, for the simulator; empty: the steady clock.
  std::function<std::chrono::steady_clock::time_point()> clock = {};
  double closing_ms_max = 10000;       // how long a finish checkpoint waits for End(kept)
  std::vector<Token> end_tokens = {};  // end-of-generation ids of the model
  std::vector<std::vector<Token>> turn_headers =
      {};  // learnt from the chat template; empty: no turn marks
  TestFaults faults = {};
};

// Counters and gauges, readable from any thread at any time.
struct EngineStats {
  std::atomic<int64_t> slots_busy{0}, queue_length{0};
  std::atomic<int64_t> in_engine{0};  // waiting and running, but for those not yet looked at
  std::atomic<uint64_t> prompt_tokens{0}, cached_tokens{0}, replayed_tokens{0}, generated_tokens{0};
  std::atomic<uint64_t> steps{0}, preemptions{0}, requests{0}, cancelled{0};
  std::atomic<uint64_t> faults{0};         // exceptions that ended what ran
  std::atomic<uint64_t> faults_in_row{0};  // since the last step that went well
  std::atomic<uint64_t> weight_bytes{0}, scratch_bytes{0}, other_bytes{0};
  std::atomic<uint64_t> pool_bytes{0};    // live and cache, rounding to pages included
  std::atomic<uint64_t> budget_bytes{0};  // of the whole
  std::atomic<uint64_t> pinned_bytes{0};  // in whole pages
  std::atomic<int64_t> pinned_tokens{0};  // of the longest pinned path
  std::atomic<uint64_t> shared_waits{0};  // requests that waited for another one's prefix
  std::atomic<uint64_t> checkpoints{0}, cache_bytes{0}, live_bytes{0}, evictions{0};
  std::atomic<uint64_t> evictions_bytes{0}, evictions_paths{0};  // evictions, by the limit
};

class PrefixTree;

// What a command sees between two steps. Valid only inside the command.
struct EngineView {
  PrefixTree& tree;
  struct SequenceInfo {
    uint64_t id;
    std::string request_id;
    const char* phase;  // "queued", "prefill", "decode", "closing"
    int64_t prompt_tokens, processed, generated, restore_point;
  };
  std::vector<SequenceInfo> sequences;
};

// Observations for histograms; called on the engine thread, must be quick.
struct EngineObserver {
  std::function<void(double seconds)> step, snapshot, inter_token, ttft;
  std::function<void(const ReuseReport&)> lookup;
  // The raw logits [vocab] that the token at `position` of request `id` is sampled from. For
  // selftest and tests of exactness.
  std::function<void(const std::string& id, int64_t position, std::span<const float> logits)>
      logits;
  // The engine cannot go on and has refused everything since: the process should end.
  std::function<void(const Status&)> fatal;
};

class Engine {
 public:
  // Starts the engine thread. `model` is shared and outlives the engine through the pointer.
  static Result<std::unique_ptr<Engine>> Create(std::shared_ptr<const Model> model,
                                                EngineOptions options,
                                                EngineObserver observer = {});
  virtual ~Engine() = default;  // stops: cancels what runs, joins the thread

  // Errors: kInvalidArgument (empty prompt, token or figure out of range, a prompt that no memory
  // of the budget could hold), kContextLength, kResourceExhausted (queue full), kUnavailable
  // (draining, or stopped after a fault). `wakeup`: TokenStream::SetWakeup.
  virtual Result<std::shared_ptr<TokenStream>> Submit(Request request,
                                                      std::function<void()> wakeup = {}) = 0;

  // Runs `command` on the engine thread between two steps and waits for it. Errors: kUnavailable
  // while stopping; kInternal if it throws. Not from a wakeup or an observer: they run on the
  // engine thread.
  virtual Status Run(std::function<void(EngineView&)> command) = 0;

  // Refuses new requests from now on; running ones go on. CancelAll ends those too.
  virtual void Drain() = 0;
  virtual void CancelAll() = 0;
  // False once it cannot go on, and after kFaultsInRowMax failed steps until one goes well.
  virtual bool healthy() const = 0;
  static constexpr uint64_t kFaultsInRowMax = 3;

  virtual const EngineStats& stats() const = 0;
  virtual const Model& model() const = 0;
  virtual const EngineOptions& options() const = 0;
};

}  // namespace cairn
