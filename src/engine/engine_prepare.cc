// Plan and Prepare: which rows this step runs, and room for all of them, before anything is
// touched.
#include <algorithm>
#include <utility>

#include "engine/engine_core.h"

namespace cairn {
namespace {

// Where the model says that shallow rows cost nothing beside deep ones, it cannot know.
constexpr double kRowCostMin = 0.125;

}  // namespace

void EngineCore::PlanStep() {
  plan_inputs_.clear();
  hidden_sequences_.clear();
  for (size_t i = 0; i < active_.size(); ++i) {
    Sequence& s = *active_[i];
    s.work.rows = 0;
    s.work.logit_count = s.work.prompt_logit_count = 0;
    s.work.samples = s.work.prefilled = false;
    s.work.emitted.reset();
    if (s.missing() > 0) {
      const bool each_row =
          s.request.prompt_logprobs && s.prompt_logprobs_sent + 1 < s.prompt_size();
      plan_inputs_.push_back({.index = static_cast<int>(i),
                              .rows_wanted = s.missing(),
                              .logits_each_row = each_row,
                              .priority = s.priority,
                              .key_rows = std::min(share_.rows(s.share_key), s.lent_rows),
                              .led_turn = s.led_turn});
    } else if (!s.wants_token()) {
      s.finished = FinishReason::kLength;
    } else if (static_cast<int>(hidden_sequences_.size()) < options_.logit_rows_max) {
      hidden_sequences_.push_back(&s);
    }
  }
  const int logit_rows_left = options_.logit_rows_max - static_cast<int>(hidden_sequences_.size());
  const std::optional<int> leader = Plan(
      plan_inputs_, {options_.step_rows_max, logit_rows_left, PrefillRowsMax()}, ++turn_, plan_);
  if (leader) active_[static_cast<size_t>(*leader)]->led_turn = turn_;
  for (const PlannedRows& p : plan_) active_[static_cast<size_t>(p.index)]->work.rows = p.rows;
}

// While streams run, prompts get as many rows as let the step keep its target, counted as rows of
// the deepest one, which cost most. The streams' pace before there was a prompt is the measure,
// though they grow deeper, and so dearer, beside it.
int EngineCore::PrefillRowsMax() {
  StepShape streams;
  double depth = 0;
  bool prompts = false;
  for (const PlanSequence& p : plan_inputs_) {
    const auto position = static_cast<double>(active_[static_cast<size_t>(p.index)]->position());
    if (p.rows_wanted == 1) {
      streams = streams + StepShape{1, position};
    } else {
      depth = std::max(depth, position);
      prompts = true;
    }
  }
  if (streams.rows == 0) {
    quiet_depth_.reset();
    return options_.step_rows_max;
  }
  if (!prompts || !quiet_depth_) quiet_depth_ = streams.depth_sum / streams.rows;
  if (!prompts) return options_.step_rows_max;
  const double deepest_ms = cost_.row_ms_at(depth);
  for (PlanSequence& p : plan_inputs_) {
    const auto position = static_cast<double>(active_[static_cast<size_t>(p.index)]->position());
    if (p.rows_wanted > 1 && deepest_ms > 0) p.row_cost = cost_.row_ms_at(position) / deepest_ms;
    p.row_cost = std::clamp(p.row_cost, kRowCostMin, 1.0);
  }
  const StepShape before = {streams.rows, streams.rows * *quiet_depth_};
  return cost_.RowsWithin({streams, before}, depth, options_.step_target, options_.step_rows_max);
}

void EngineCore::PrepareStep() {
  step_shape_ = {};
  step_prompt_rows_ = 0;
  in_batch_.clear();
  batch_tokens_.clear();
  slices_.clear();
  taps_.clear();
  logit_rows_.clear();
  logit_tasks_.clear();
  for (const PlannedRows& p : plan_)
    in_batch_.push_back(active_[static_cast<size_t>(p.index)].get());
  for (size_t i = 0; i < in_batch_.size(); ++i) {
    Sequence& s = *in_batch_[i];
    if (s.work.rows == 0) continue;  // preempted for another one
    while (s.work.rows > 0 && !ReserveRows(s, s.work.rows)) {
    }
  }
  // A preempted sequence may be gone: what is still active is asked, not what was planned.
  in_batch_.clear();
  for (const SequencePtr& s : active_)
    if (s->work.rows == 1) in_batch_.push_back(s.get());
  for (const SequencePtr& s : active_)
    if (s->work.rows > 1) in_batch_.push_back(s.get());
  std::erase_if(hidden_sequences_, [&](const Sequence* h) {
    return std::none_of(active_.begin(), active_.end(),
                        [&](const SequencePtr& s) { return s.get() == h; });
  });
  for (Sequence* s : in_batch_) ReserveMarks(*s);
  for (Sequence* s : in_batch_) AddSlice(*s);
}

// One try. False: something was freed, or the sequence lost its rows; look at work.rows and try
// again.
bool EngineCore::ReserveRows(Sequence& s, int rows) {
  const uint64_t blocks = BlocksFor(s, rows);
  const bool live_room = LiveRoom(blocks * blocks_.block_bytes());
  // First the cache gives what the process has grown by, as far as it can.
  if (grown_bytes_ > 0 && live_room && !PoolRoom(blocks, 0, grown_bytes_) && tree_.EvictOne())
    return false;
  if (live_room && PoolRoom(blocks, 0) && s.state->Reserve(rows).ok()) return true;
  if (!closing_.empty()) {
    LetGo(*closing_.front());
    closing_.erase(closing_.begin());
    return false;
  }
  if (live_room && tree_.EvictOne()) return false;
  if (active_.size() > 1) {
    PreemptYoungest();
    return false;
  }
  // Alone, and only its own path's checkpoints are left: it does not need them to go on.
  if (s.lease && tree_.LetGoOfPath(s.lease)) return false;
  s.work.rows = 0;
  Finish(TakeActive(s), FinishReason::kError,
         ResourceExhausted("[engine] the request needs more memory than the engine may use"));
  return true;
}

uint64_t EngineCore::BlocksFor(const Sequence& s, int rows) const {
  if (blocks_.block_bytes() == 0) return 0;
  const int64_t wanted = (s.position() + rows + kBlockTokens - 1) / kBlockTokens;
  const int64_t held = static_cast<int64_t>(s.state->blocks().size());
  return static_cast<uint64_t>(std::max<int64_t>(0, wanted - held));
}

// The youngest of the least urgent ones.
void EngineCore::PreemptYoungest() {
  const auto youngest = std::max_element(
      active_.begin(), active_.end(), [](const SequencePtr& a, const SequencePtr& b) {
        return std::pair(a->priority, a->id) < std::pair(b->priority, b->id);
      });
  Preempt(**youngest);
}

// The marks inside (position, position + rows], into step_marks_.
void EngineCore::CollectMarks(Sequence& s) {
  step_marks_.clear();
  const int64_t begin = s.position(), end = begin + s.work.rows;
  while (s.next_mark < s.marks.size() && s.marks[s.next_mark].position <= begin) ++s.next_mark;
  for (size_t i = s.next_mark; i < s.marks.size() && s.marks[i].position <= end; ++i)
    step_marks_.push_back(s.marks[i]);
  const int64_t stride = options_.cache.stride;
  if (stride <= 0) return;
  for (int64_t p = begin / stride * stride + stride; p <= end; p += stride)
    if (p > s.prompt_size() && IsGenerationGridMark(p, stride, model_.layout().trimmable()))
      step_marks_.push_back({p, kMarkGrid});
}

// A mark that gets no room is left out; the request never fails for it.
void EngineCore::ReserveMarks(Sequence& s) {
  s.pending.clear();
  if (!s.lease) return;
  CollectMarks(s);
  if (step_marks_.empty()) return;
  for (const Mark& mark : tree_.ReserveMarks(s.lease, s.state->blocks(), step_marks_)) {
    Result<StateBuffer> buffer = TapBuffer();
    if (!buffer.ok()) break;
    s.pending.push_back({mark, std::move(*buffer)});
  }
  if (s.pending.empty()) tree_.ReleaseMarks(s.lease);
}

Result<StateBuffer> EngineCore::TapBuffer() {
  while (true) {
    Result<StateBuffer> buffer = PoolRoom(0, 1, grown_bytes_)
                                     ? states_.Allocate()
                                     : ResourceExhausted("[engine] the memory budget is used");
    if (buffer.ok() || !tree_.EvictOne()) return buffer;
  }
}

void EngineCore::AddSlice(Sequence& s) {
  const int64_t position = s.position();
  ForwardSlice slice;
  slice.row_begin = static_cast<int>(batch_tokens_.size());
  slice.row_count = s.work.rows;
  slice.position = position;
  slice.blocks = s.state->block_pointers();
  slice.state = s.state->state();
  const size_t tap_begin = taps_.size();
  for (const PendingMark& p : s.pending)
    taps_.push_back({static_cast<int>(p.mark.position - position - 1), p.buffer.data()});
  // taps_ was reserved for a tap on every row, so its elements stay where they are.
  slice.taps = std::span(taps_).subspan(tap_begin);
  const auto tokens = std::span<const Token>(s.tokens).subspan(static_cast<size_t>(position),
                                                               static_cast<size_t>(s.work.rows));
  batch_tokens_.insert(batch_tokens_.end(), tokens.begin(), tokens.end());
  slices_.push_back(slice);
  const double rows = s.work.rows;
  const double mean_depth = static_cast<double>(position) + rows / 2;
  step_shape_ = step_shape_ + StepShape{s.work.rows, rows * mean_depth};
  // A piece of one row too: or a model that believes prompts to be dear would never learn better.
  if (s.missing() > 1) step_prompt_rows_ += s.work.rows;
  s.work.prefilled = position < s.prompt_size();
  AddLogitRows(s);
}

// Which rows of the slice need logits: those whose next prompt token's log probability is wanted,
// and the last one if a token is sampled after it.
void EngineCore::AddLogitRows(Sequence& s) {
  StepWork& w = s.work;
  const int first_row = static_cast<int>(batch_tokens_.size()) - w.rows;
  const int base = static_cast<int>(hidden_sequences_.size());
  const int64_t begin = s.position(), end = begin + w.rows;
  w.logit_begin = base + static_cast<int>(logit_rows_.size());
  w.prompt_logprobs.clear();
  for (int64_t p = begin; p < end; ++p) {
    const bool prompt_row =
        s.request.prompt_logprobs && p + 1 < s.prompt_size() && p + 1 > s.prompt_logprobs_sent;
    const bool sample_row = p + 1 == static_cast<int64_t>(s.tokens.size()) && s.wants_token();
    if (!prompt_row && !sample_row) continue;
    if (prompt_row && w.prompt_logit_count++ == 0) w.prompt_logit_begin = p + 1;
    if (sample_row) w.samples = true;
    logit_rows_.push_back(first_row + static_cast<int>(p - begin));
  }
  w.logit_count = base + static_cast<int>(logit_rows_.size()) - w.logit_begin;
}

}  // namespace cairn
