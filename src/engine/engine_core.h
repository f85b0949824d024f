// The engine without its thread: sequences, pools, tree and the step. Engine (engine.cc) runs it on
// its thread; the simulator and unit tests step it by hand.
//
// Start here: Step in engine_core.cc. Files by stage: engine_admit.cc, engine_prepare.cc,
// engine_forward.cc (Forward, Sample), engine_commit.cc (Commit, Emit, finish, preempt).
//
// Owns: all sequences, pools, the tree, scratch. Threads: one thread. Invariants: only Commit (and
// a finish, a cancel or a preemption) mutates tokens, tree and states; a sequence lies in exactly
// one of waiting_, active_, closing_; leases and states are held by active_ and closing_ only.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "cache/prefix_tree.h"
#include "engine/engine.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"
#include "state/block_pool.h"
#include "state/state_pool.h"

namespace cairn {

class EngineCore {
 public:
  // `model`, `options`, `observer` and `stats` outlive the core. Starts the compute pool; the
  // calling thread is worker 0 and must be the one that steps.
  EngineCore(const Model& model, const EngineOptions& options, const EngineObserver& observer,
             EngineStats& stats);
  ~EngineCore();

  // One that cannot fit beside what is pinned is told so at once; an answer ends where there is no
  // more room for it. REQUIRES: stats.queue_length counts it already.
  void Enqueue(std::unique_ptr<Sequence> sequence);

  // One step. True: there is more to do now. False: nothing runs or waits; call again after
  // NextWake(), or when something was submitted, cancelled or ended.
  bool Step();
  std::optional<Clock::time_point> NextWake() const;

  // Ends everything: kCancelled, or kError with `error` if that is not ok.
  void EndAll(const Status& error);
  // After an exception out of any member: ends what ran with `error`; waiting requests stay. What
  // may be half changed is forgotten: afterwards CheckInvariants passes and steps go on. False: the
  // cache had to go too.
  bool Recover(const Status& error);
  void UpdateGauges();

  EngineView View();
  PrefixTree& tree() { return tree_; }
  const BlockPool& block_pool() const { return blocks_; }
  // Limits for tests: allocation fails beyond them.
  void SetPoolLimits(std::optional<size_t> blocks, std::optional<size_t> states);
  size_t waiting_count() const { return waiting_.size(); }
  size_t closing_count() const { return closing_.size(); }
  // Private memory of live sequences: what the pools hold and the tree does not.
  uint64_t live_bytes() const;
  // What the pools may hold under the budget, and what one sequence needs of it.
  uint64_t pool_budget() const { return pool_budget_; }
  uint64_t SequenceBytes(int64_t tokens) const;
  // The longest sequence that fits when nothing else does but what pins hold: tokens in its state.
  int64_t TokensThatFit(uint64_t pinned_bytes = 0) const;
  uint64_t PinnedBytesBeside(const Request& request) const;
  // kInvalidArgument with the numbers, where a prompt can never fit. Any thread.
  Status CheckFits(int64_t prompt_tokens, uint64_t pinned_bytes) const;
  void CheckInvariants() const;

 private:
  using SequencePtr = std::unique_ptr<Sequence>;
  enum class Stage { kAdmit, kPlan, kPrepare, kForward, kSample, kCommit, kEmit };
  // One logit row to look at: who wants it, and the prompt token it predicts (nullopt: the next
  // token is sampled from it).
  struct LogitTask {
    Sequence* sequence;
    int row;
    std::optional<int> prompt_index;  // into work.prompt_logprobs
    int slot;                         // for TestFaults::random_by_slot only
  };

  // engine_admit.cc
  void EndWaiting();
  void EndRunning();
  void EndClosing();
  void AdmitWaiting();
  bool FreeIdleMemory();
  Status Start(Sequence& sequence);
  Status StartWithoutCache(Sequence& sequence, MissReason reason);
  Status StartFromTree(Sequence& sequence);
  Result<SequenceState> RestoreState(Sequence& sequence, const Match& match);
  void PlanSequenceMarks(Sequence& sequence, int64_t matched);
  void ReportReuse(Sequence& sequence, const ReuseReport& reuse);
  bool LiveRoom(uint64_t bytes_more) const;
  bool PoolRoom(uint64_t blocks_more, uint64_t states_more, uint64_t kept_free = 0);
  void MeasureProcess();
  void WarmNextBlock();
  void ReleaseWarm();
  uint64_t pool_bytes() const;  // resident, warm ones included
  uint64_t PageBytes(const PoolCounts& counts) const;
  Clock::time_point Now() const { return options_.clock ? options_.clock() : Clock::now(); }
  bool IsPast(std::optional<Clock::time_point> t) const { return t && Now() >= *t; }

  // engine_sharing.cc
  std::optional<size_t> NextToAdmit() const;
  void PassOverWaiters();
  bool WaitsForSibling(Sequence& sequence);
  Sequence* AwaitedBy(const Sequence& sequence) const;
  struct Leader {
    Sequence* sequence = nullptr;
    int64_t shared = 0;  // tokens
  };
  Leader FindLeader(const Sequence& sequence) const;
  void PlantMark(Sequence& leader, int64_t position);

  // engine_prepare.cc
  void PlanStep();
  void PrepareStep();
  bool ReserveRows(Sequence& sequence, int rows);
  uint64_t BlocksFor(const Sequence& sequence, int rows) const;
  int PrefillRowsMax();
  void PreemptYoungest();
  void CollectMarks(Sequence& sequence);
  void ReserveMarks(Sequence& sequence);
  Result<StateBuffer> TapBuffer();
  void AddSlice(Sequence& sequence);
  void AddLogitRows(Sequence& sequence);

  // engine_forward.cc
  void ForwardStep();
  void HiddenRowLogits();
  void SampleStep();
  void ObserveLogits() const;
  std::span<const float> LogitsOf(const LogitTask& task) const;
  void RunLogitTask(const LogitTask& task, SamplerScratch& scratch);

  // engine_commit.cc
  void CommitStep();
  void LearnCost(double ms);
  void CommitToken(Sequence& sequence);
  void EmitStep();
  void EmitWork(Sequence& sequence);
  void Finish(SequencePtr sequence, FinishReason reason, Status error);
  void PublishFinish(Sequence& sequence);
  static void LetGo(Sequence& sequence) noexcept;
  void Preempt(Sequence& sequence);
  SequencePtr TakeActive(const Sequence& sequence);

  const Model& model_;
  const EngineOptions& options_;
  const EngineObserver& observer_;
  EngineStats& stats_;
  const int vocab_size_;
  ThreadPool pool_;
  const KernelContext context_;
  BlockPool blocks_;
  StatePool states_;
  std::unique_ptr<Workspace> workspace_;
  const uint64_t scratch_bytes_;
  const uint64_t pool_budget_;
  uint64_t grown_bytes_ = 0;  // of the process, that no allowance covers: the cache does without
  int steps_unmeasured_ = 0;
  Clock::time_point measured_;
  PrefixTree tree_;
  CostModel cost_;
  std::optional<double> quiet_depth_;  // of a stream, on average, when no prompt was beside them
  FairShare share_;

  std::deque<SequencePtr> waiting_;  // by id, preempted ones first
  std::vector<SequencePtr> active_;  // by admission
  std::vector<SequencePtr> closing_;
  // After a preemption or a failed start nobody is admitted until a running sequence ended:
  // otherwise it would be preempted again at once.
  bool admission_waits_ = false;
  Stage stage_ = Stage::kEmit;
  Sequence* starting_ = nullptr;  // the waiting one that Admit is at
  uint64_t turn_ = 1;
  uint64_t forward_count_ = 0;
  uint64_t pins_version_ = 0;  // of the tree, when its pins were counted
  StepShape step_shape_;
  int step_prompt_rows_ = 0;  // of them in pieces of prompts

  // Scratch of a step, reserved once.
  std::vector<PlanSequence> plan_inputs_;
  std::vector<PlannedRows> plan_;
  std::vector<Sequence*> hidden_sequences_;  // nothing to replay: logits from the hidden row
  std::vector<const float*> hidden_rows_;
  std::vector<Token> batch_tokens_;
  std::vector<ForwardSlice> slices_;
  std::vector<ForwardTap> taps_;
  std::vector<int> logit_rows_;
  std::vector<Sequence*> in_batch_;
  std::vector<LogitTask> logit_tasks_;
  std::vector<Mark> step_marks_;
  std::unique_ptr<float[]> logits_;              // [logit_rows_max, vocab]
  std::vector<SamplerScratch> sampler_scratch_;  // by worker
};

}  // namespace cairn
