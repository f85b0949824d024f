#include "engine/engine_core.h"

#include <algorithm>
#include <new>
#include <stdexcept>
#include <utility>

#include "engine/replay_cost.h"

namespace cairn {
namespace {

CacheOptions WithReplayCost(CacheOptions options, const Model& model) {
  options.replay_cost = EstimateReplayCost(model);
  return options;
}

size_t Count(int n) { return static_cast<size_t>(std::max(0, n)); }

uint64_t LogitBytes(const EngineOptions& o, int vocab_size) {
  // Logits, and a sampler's working copy for each thread.
  return (Count(o.logit_rows_max) + 2 * Count(o.threads)) * Count(vocab_size) * sizeof(float);
}

uint64_t PoolBudget(const EngineOptions& o, uint64_t fixed_bytes) {
  if (o.memory_budget == UINT64_MAX) return UINT64_MAX;
  const uint64_t fixed = fixed_bytes + o.other_bytes;
  return o.memory_budget > fixed ? o.memory_budget - fixed : 0;
}

// The cache never has more than the budget leaves; its pins are a share of that, or they could
// leave no room for any sequence.
CacheOptions WithinBudget(CacheOptions o, uint64_t pool_budget) {
  o.bytes_max = std::min(o.bytes_max, pool_budget);
  return o;
}

}  // namespace

EngineCore::EngineCore(const Model& model, const EngineOptions& options,
                       const EngineObserver& observer, EngineStats& stats)
    : model_(model),
      options_(options),
      observer_(observer),
      stats_(stats),
      vocab_size_(model.info().vocab_size),
      pool_(options.threads),
      context_{options.cpu_level, &pool_},
      blocks_(model.layout()),
      states_(model.layout()),
      workspace_(
          model.CreateWorkspace(options.step_rows_max, options.logit_rows_max, options.threads)),
      scratch_bytes_(workspace_->bytes() + LogitBytes(options, vocab_size_)),
      pool_budget_(PoolBudget(options, model.info().weight_bytes + scratch_bytes_)),
      tree_(model.layout(), WithReplayCost(WithinBudget(options.cache, pool_budget_), model)),
      // Touched now, so that resident memory is what the ledger says.
      logits_(new float[Count(options.logit_rows_max) * static_cast<size_t>(vocab_size_)]()) {
  const size_t slots = Count(options.decode_concurrency);
  const size_t rows = Count(options.step_rows_max);
  active_.reserve(slots);
  plan_inputs_.reserve(slots);
  plan_.reserve(slots);
  hidden_sequences_.reserve(slots);
  hidden_rows_.reserve(slots);
  batch_tokens_.reserve(rows);
  slices_.reserve(slots);
  taps_.reserve(rows);
  logit_rows_.reserve(Count(options.logit_rows_max));
  in_batch_.reserve(slots);
  logit_tasks_.reserve(Count(options.logit_rows_max));
  stats_.weight_bytes = model.info().weight_bytes;
  stats_.scratch_bytes = scratch_bytes_;
  stats_.other_bytes = options.other_bytes;
  stats_.budget_bytes = options.memory_budget;
  for (int i = 0; i < options.threads; ++i)
    sampler_scratch_.emplace_back(vocab_size_, options.cpu_level);
}

EngineCore::~EngineCore() {
  for (auto* list : {&active_, &closing_})
    for (SequencePtr& s : *list) LetGo(*s);
}

bool EngineCore::Step() {
  const auto begin = Now();
  stage_ = Stage::kAdmit;
  EndWaiting();
  EndClosing();
  EndRunning();
  AdmitWaiting();
  if (!active_.empty()) {
    stage_ = Stage::kPlan;
    PlanStep();
    stage_ = Stage::kPrepare;
    PrepareStep();
    stage_ = Stage::kForward;
    ForwardStep();
    stage_ = Stage::kSample;
    SampleStep();
    stage_ = Stage::kCommit;
    CommitStep();
    UpdateGauges();
    stage_ = Stage::kEmit;
    EmitStep();
    ++stats_.steps;
    stats_.faults_in_row = 0;
    const double seconds = std::chrono::duration<double>(Now() - begin).count();
    LearnCost(1e3 * seconds);
    if (observer_.step) observer_.step(seconds);
  }
  stage_ = Stage::kEmit;
  if (tree_.damaged()) throw std::bad_alloc();
  UpdateGauges();
  return !active_.empty() || !waiting_.empty();
}

std::optional<Clock::time_point> EngineCore::NextWake() const {
  std::optional<Clock::time_point> next;
  auto earlier = [&](std::optional<Clock::time_point> t) {
    if (t && (!next || *t < *next)) next = t;
  };
  for (const SequencePtr& s : waiting_) earlier(s->deadline());
  for (const SequencePtr& s : closing_) earlier(s->closing_until);
  return next;
}

void EngineCore::EndAll(const Status& error) {
  const FinishReason reason = error.ok() ? FinishReason::kCancelled : FinishReason::kError;
  while (!active_.empty()) Finish(TakeActive(*active_.back()), reason, error);
  while (!waiting_.empty()) {
    SequencePtr s = std::move(waiting_.front());
    waiting_.pop_front();
    Finish(std::move(s), reason, error);
  }
  for (SequencePtr& s : closing_) s->closing_until = Now();
  EndClosing();
  admission_waits_ = false;
  UpdateGauges();
}

bool EngineCore::Recover(const Status& error) {
  if (options_.faults.recovery_throws) throw std::runtime_error("planted");
  bool keeps_tree = !tree_.damaged() && (stage_ == Stage::kPlan || stage_ == Stage::kForward ||
                                         stage_ == Stage::kSample || stage_ == Stage::kEmit);
  if (!keeps_tree) tree_.Abandon();
  // Nothing of the running sequences is published: their states may be half written.
  bool ended_one = !active_.empty();
  while (!active_.empty()) {
    const SequencePtr s = std::move(active_.back());
    active_.pop_back();
    if (!s) continue;
    LetGo(*s);
    s->TellError(error);
  }
  if (tree_.damaged()) {  // there was not even memory to give the leases back
    tree_.Abandon();
    keeps_tree = false;
  }
  if (!keeps_tree) {
    for (SequencePtr& s : closing_)
      if (s) LetGo(*s);
    closing_.clear();  // their ends were told
  }
  for (SequencePtr& s : waiting_)
    if (s) LetGo(*s);
  // The one that was being started ends too; so does the first one where nothing else did, or the
  // same step would fail for ever.
  if (starting_ == nullptr && !ended_one && !waiting_.empty()) starting_ = waiting_.front().get();
  std::erase_if(waiting_, [&](SequencePtr& s) {
    if (s && s.get() != starting_) return false;
    if (s) s->TellError(error);
    --stats_.queue_length;
    return true;
  });
  starting_ = nullptr;
  admission_waits_ = false;
  stage_ = Stage::kEmit;
  ++stats_.faults;
  ++stats_.faults_in_row;
  UpdateGauges();
  return keeps_tree;
}

void EngineCore::UpdateGauges() {
  stats_.slots_busy = static_cast<int64_t>(active_.size());
  stats_.in_engine = static_cast<int64_t>(active_.size() + waiting_.size());
  stats_.checkpoints = tree_.checkpoint_count();
  stats_.cache_bytes = tree_.bytes();
  stats_.live_bytes = live_bytes();
  stats_.pool_bytes = blocks_.resident_bytes() + states_.resident_bytes();
  stats_.evictions = tree_.evictions().bytes + tree_.evictions().paths;
  stats_.evictions_bytes = tree_.evictions().bytes;
  stats_.evictions_paths = tree_.evictions().paths;
  stats_.last_step_ms_unix =
      static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(
                                std::chrono::system_clock::now().time_since_epoch())
                                .count());
}

uint64_t EngineCore::live_bytes() const {
  return blocks_.held_bytes() + states_.held_bytes() - tree_.bytes();
}

bool EngineCore::PoolRoom(uint64_t blocks_more, uint64_t states_more) const {
  const uint64_t held = blocks_.resident_bytes() + states_.resident_bytes();
  const uint64_t more =
      blocks_more * blocks_.resident_block_bytes() + states_more * states_.resident_buffer_bytes();
  return held <= pool_budget_ && more <= pool_budget_ - held;
}

uint64_t EngineCore::SequenceBytes(int64_t tokens) const {
  const auto blocks = static_cast<uint64_t>((tokens + kBlockTokens - 1) / kBlockTokens);
  return states_.resident_buffer_bytes() +
         (blocks_.block_bytes() > 0 ? blocks * blocks_.resident_block_bytes() : 0);
}

int64_t EngineCore::TokensThatFit() const {
  const uint64_t room = std::min(pool_budget_, options_.live_bytes_max);
  if (room < SequenceBytes(0)) return 0;
  if (blocks_.block_bytes() == 0) return INT64_MAX;
  const uint64_t blocks = (room - SequenceBytes(0)) / blocks_.resident_block_bytes();
  return static_cast<int64_t>(std::min<uint64_t>(blocks, INT64_MAX / kBlockTokens)) * kBlockTokens;
}

EngineView EngineCore::View() {
  stage_ = Stage::kAdmit;  // whoever holds a view may change the tree
  EngineView view{tree_, {}};
  auto add = [&](const Sequence& s, const char* phase) {
    view.sequences.push_back({.id = s.id,
                              .request_id = s.request.id,
                              .phase = phase,
                              .prompt_tokens = s.prompt_size(),
                              .processed = std::min(s.position(), s.prompt_size()),
                              .generated = s.generated(),
                              .restore_point = s.reuse ? s.reuse->restore_point : 0});
  };
  for (const SequencePtr& s : active_) add(*s, s->prefilling() ? "prefill" : "decode");
  for (const SequencePtr& s : closing_) add(*s, "closing");
  for (const SequencePtr& s : waiting_) add(*s, "queued");
  return view;
}

void EngineCore::SetPoolLimits(std::optional<size_t> blocks, std::optional<size_t> states) {
  blocks_.set_limit(blocks);
  states_.set_limit(states);
}

void EngineCore::CheckInvariants() const {
  tree_.CheckInvariants();
  blocks_.CheckInvariants();
  CHECK(blocks_.free() + blocks_.held() == blocks_.total());
  CHECK(states_.free() + states_.held() == states_.total());
  CHECK(blocks_.held() >= tree_.block_count());
  CHECK(PoolRoom(0, 0));
  // Every state buffer is a checkpoint or belongs to a sequence that holds a slot or is closing.
  size_t live_states = 0;
  for (const auto* list : {&active_, &closing_}) {
    for (const SequencePtr& s : *list) {
      CHECK(s->state.has_value());
      CHECK(s->position() <= static_cast<int64_t>(s->tokens.size()));
      CHECK(s->pending.empty());
      ++live_states;
    }
  }
  for (const SequencePtr& s : waiting_) CHECK(!s->state && !s->lease);
  CHECK(states_.held() == tree_.checkpoint_count() + live_states);
  if (live_states == 0) CHECK(live_bytes() == 0);
  if (options_.cache.enabled())
    CHECK(tree_.bytes() + tree_.reserved_bytes() <= tree_.options().bytes_max);
}

}  // namespace cairn
