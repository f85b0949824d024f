#include "engine/engine_core.h"

#include <algorithm>
#include <new>
#include <stdexcept>
#include <utility>

#include "base/bytes.h"
#include "engine/engine_log.h"
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

// The cache never has more than the budget leaves; its pins are a share of that, in whole pages
// too, or they could leave no room for any sequence.
CacheOptions WithinBudget(CacheOptions o, uint64_t pool_budget, const BlockPool& blocks,
                          const StatePool& states) {
  o.bytes_max = std::min(o.bytes_max, pool_budget);
  o.page_bytes_max = pool_budget;
  o.block_page_bytes = blocks.block_bytes() > 0 ? blocks.resident_block_bytes() : 0;
  o.state_page_bytes = states.resident_buffer_bytes();
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
      tree_(model.layout(),
            WithReplayCost(WithinBudget(options.cache, pool_budget_, blocks_, states_), model)),
      // Not zeroed: rows that no step ever has never become resident, though the ledger has them.
      logits_(new float[Count(options.logit_rows_max) * static_cast<size_t>(vocab_size_)]) {
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
    MeasureProcess();
    WarmNextBlock();
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
  stage_ = Stage::kCommit;  // finish checkpoints change the tree: after a throw it is not certain
  const FinishReason reason = error.ok() ? FinishReason::kCancelled : FinishReason::kError;
  while (!active_.empty()) Finish(TakeActive(*active_.back()), reason, error);
  while (!waiting_.empty()) {
    Status copy = error;
    SequencePtr s = std::move(waiting_.front());
    waiting_.pop_front();
    Finish(std::move(s), reason, std::move(copy));
  }
  for (SequencePtr& s : closing_) s->closing_until = Now();
  EndClosing();
  admission_waits_ = false;
  UpdateGauges();
}

bool EngineCore::Recover(const Status& error) {
  if (options_.faults.recovery_throws) throw std::runtime_error("planted");
  ++stats_.faults;  // first: whoever hears of the end finds it counted
  ++stats_.faults_in_row;
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
    LogAbout(*s, LogLevel::kError, "[engine] ended by a failed step");
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
    --stats_.queue_length;
    if (s) LogAbout(*s, LogLevel::kError, "[engine] ended by a failed step");
    if (s) s->TellError(error);
    return true;
  });
  starting_ = nullptr;
  admission_waits_ = false;
  ++turn_;  // the turn that was broken off may have passed over ones that nobody computes for now
  stage_ = Stage::kEmit;
  UpdateGauges();
  return keeps_tree;
}

void EngineCore::UpdateGauges() {
  stats_.slots_busy = static_cast<int64_t>(active_.size());
  stats_.in_engine = static_cast<int64_t>(active_.size() + waiting_.size());
  stats_.checkpoints = tree_.checkpoint_count();
  stats_.cache_bytes = tree_.bytes();
  stats_.live_bytes = live_bytes();
  stats_.pool_bytes = pool_bytes();
  stats_.evictions = tree_.evictions().bytes + tree_.evictions().paths;
  stats_.evictions_bytes = tree_.evictions().bytes;
  stats_.evictions_paths = tree_.evictions().paths;
  if (pins_version_ != tree_.version()) {
    pins_version_ = tree_.version();
    stats_.pinned_bytes = PageBytes(tree_.PinnedCounts());
    stats_.pinned_tokens = tree_.pinned_tokens_max();
  }
}

uint64_t EngineCore::live_bytes() const {
  return blocks_.held_bytes() + states_.held_bytes() - tree_.bytes();
}

// What the process has beside the ledger's parts is an allowance, made after loading; how much
// connections, the allocator and the program's own pages take is seen only later. It never takes
// room that a live sequence was promised, only the cache's (RestoreState, ReserveRows, TapBuffer).
void EngineCore::MeasureProcess() {
  constexpr int kStepsBetween = 64;
  constexpr auto kTimeBetween = std::chrono::seconds(1);  // steps of a long prompt may take longer
  constexpr uint64_t kMargin = uint64_t{512} << 10;
  if (!options_.resident_bytes) return;
  const auto now = Now();
  if (++steps_unmeasured_ < kStepsBetween && now - measured_ < kTimeBetween) return;
  steps_unmeasured_ = 0;
  measured_ = now;
  const uint64_t resident = options_.resident_bytes();
  if (resident == 0) return;  // not known just now: no file descriptor is free, most likely
  const uint64_t known = stats_.weight_bytes + scratch_bytes_ + options_.other_bytes + pool_bytes();
  const uint64_t beyond = resident > known ? resident - known : 0;
  // It falls only by much: what an allocator gives back it soon takes again.
  if (beyond > grown_bytes_ || beyond + 4 * kMargin < grown_bytes_)
    grown_bytes_ = beyond == 0 ? 0 : beyond + kMargin;
  stats_.other_bytes = options_.other_bytes + grown_bytes_;
}

// Streams that began together end their blocks together, and a step in which all of them get fresh
// memory takes half as long again (slab.h has the cost). So each step warms one block ahead, until
// every sequence has its next one. It never takes room from anything, nor what the process has
// grown by.
void EngineCore::WarmNextBlock() {
  const uint64_t budget = pool_budget_ - std::min(pool_budget_, grown_bytes_);
  if (pool_bytes() > budget) return ReleaseWarm();
  if (blocks_.block_bytes() == 0 || blocks_.warm() >= active_.size()) return;
  if (blocks_.resident_block_bytes() <= budget - pool_bytes()) blocks_.WarmOne();
}

bool EngineCore::PoolRoom(uint64_t blocks_more, uint64_t states_more, uint64_t kept_free) {
  const uint64_t budget = pool_budget_ - std::min(pool_budget_, kept_free);
  const uint64_t block = blocks_.resident_block_bytes(), state = states_.resident_buffer_bytes();
  const uint64_t wanted = blocks_.resident_bytes() + states_.resident_bytes() +
                          blocks_more * block + states_more * state;
  // Warm ones are the first that are taken: where the pools are full, what eviction freed is warm
  // and goes to whom it was freed for.
  const uint64_t warm_then = (blocks_.warm() - std::min(blocks_.warm(), blocks_more)) * block +
                             (states_.warm() - std::min(states_.warm(), states_more)) * state;
  if (wanted > budget) return false;
  if (wanted + warm_then > budget) ReleaseWarm();
  return true;
}

void EngineCore::ReleaseWarm() {
  blocks_.ReleaseWarm();
  states_.ReleaseWarm();
}

uint64_t EngineCore::pool_bytes() const {
  return blocks_.resident_bytes() + blocks_.warm_bytes() + states_.resident_bytes() +
         states_.warm_bytes();
}

uint64_t EngineCore::SequenceBytes(int64_t tokens) const {
  const auto blocks = static_cast<uint64_t>((tokens + kBlockTokens - 1) / kBlockTokens);
  return states_.resident_buffer_bytes() + blocks * tree_.options().block_page_bytes;
}

int64_t EngineCore::TokensThatFit(uint64_t pinned_bytes) const {
  const auto tokens_in = [](uint64_t room, uint64_t state_bytes, uint64_t block_bytes) {
    if (room < state_bytes) return int64_t{0};
    if (block_bytes == 0) return INT64_MAX;
    const uint64_t blocks = (room - state_bytes) / block_bytes;
    return static_cast<int64_t>(std::min<uint64_t>(blocks, INT64_MAX / kBlockTokens)) *
           kBlockTokens;
  };
  return std::min(
      tokens_in(pool_budget_ - std::min(pool_budget_, pinned_bytes), SequenceBytes(0),
                tree_.options().block_page_bytes),
      tokens_in(options_.live_bytes_max, states_.buffer_bytes(), blocks_.block_bytes()));
}

uint64_t EngineCore::PageBytes(const PoolCounts& counts) const {
  return counts.blocks * tree_.options().block_page_bytes +
         counts.states * tree_.options().state_page_bytes;
}

// What pins take from a sequence of this prompt, and could not be evicted for it.
uint64_t EngineCore::PinnedBytesBeside(const Request& r) const {
  if (tree_.pin_count() == 0 || pool_budget_ == UINT64_MAX) return 0;
  const bool reads = r.cache_prompt && !r.prompt_logprobs;
  return PageBytes(reads ? tree_.PinnedCountsBeside(r.prompt, r.cache_salt) : tree_.PinnedCounts());
}

Status EngineCore::CheckFits(int64_t prompt_tokens, uint64_t pinned_bytes) const {
  const int64_t fit = TokensThatFit(pinned_bytes);
  if (prompt_tokens < fit) return Status();
  const std::string pinned =
      pinned_bytes == 0 ? "" : ", of which pins hold " + FormatSize(pinned_bytes);
  return InvalidArgument("[engine] a prompt of " + std::to_string(prompt_tokens) +
                         " tokens needs " + FormatSize(SequenceBytes(prompt_tokens + 1)) +
                         ", but the memory budget leaves " +
                         FormatSize(std::min(pool_budget_, options_.live_bytes_max)) +
                         " for sequences" + pinned + ": " + std::to_string(fit) + " tokens");
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
  CHECK(pool_bytes() <= pool_budget_);
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
