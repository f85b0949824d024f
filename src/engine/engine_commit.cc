// Commit and Emit: tokens, checkpoints and events become visible; and the three ways out of a slot:
// finish, cancel, preempt.
#include <algorithm>
#include <utility>

#include "engine/engine_core.h"
#include "engine/engine_log.h"

namespace cairn {
namespace {

double Seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

}  // namespace

void EngineCore::CommitStep() {
  for (Sequence* s : in_batch_) {
    s->state->Advance(s->work.rows);
    share_.Charge(s->share_key, s->work.rows);
    if (s->pending.empty()) continue;
    const auto begin = Clock::now();
    for (PendingMark& p : s->pending) {
      const auto tokens =
          std::span<const Token>(s->tokens).first(static_cast<size_t>(p.mark.position));
      tree_.Publish(s->lease, tokens, s->state->blocks(), std::move(p.buffer), p.mark.kinds,
                    s->path_type(p.mark.position));
    }
    s->pending.clear();
    tree_.ReleaseMarks(s->lease);
    if (observer_.snapshot) observer_.snapshot(Seconds(Clock::now() - begin));
  }
  for (const SequencePtr& s : active_) {
    if (s->work.samples) CommitToken(*s);
    if (!s->wants_token() && s->missing() == 0) s->finished = FinishReason::kLength;
  }
}

void EngineCore::LearnCost(double ms) {
  if (step_shape_.rows == 0) return;
  const bool prompts = step_prompt_rows_ > 0, streams = step_prompt_rows_ < step_shape_.rows;
  cost_.Observe(prompts ? CostModel::Kind::kPrefill : CostModel::Kind::kDecode, step_shape_, ms,
                streams ? step_prompt_rows_ : 0);
}

void EngineCore::CommitToken(Sequence& s) {
  const Token token = s.work.sampled;
  if (s.ends_by(token, options_.end_tokens)) {
    s.stop_token = token;
    s.finished = FinishReason::kStop;
    return;
  }
  s.tokens.push_back(token);
  s.work.emitted = token;
  ++stats_.generated_tokens;
  if (s.generated() >= s.max_tokens) s.finished = FinishReason::kLength;
}

void EngineCore::EmitStep() {
  for (const SequencePtr& s : active_) EmitWork(*s);
  stage_ = Stage::kCommit;  // finish checkpoints change the tree: after a throw it is not certain
  for (size_t i = 0; i < active_.size();) {
    Sequence& s = *active_[i];
    if (s.finished)
      Finish(TakeActive(s), *s.finished, Status());
    else
      ++i;
  }
}

void EngineCore::EmitWork(Sequence& s) {
  StepWork& w = s.work;
  // Rows that a preemption made be replayed are no progress, least of all after a token.
  if (w.prefilled && !s.has_first_token) {
    const int64_t processed = std::min(s.position(), s.prompt_size());
    if (processed > s.progress_sent) {
      s.progress_sent = processed;
      s.stream->Push(ProgressEvent{processed, s.prompt_size()});
    }
  }
  for (PromptLogprobsEvent& event : w.prompt_logprobs) {
    s.stream->Push(std::move(event));
    ++s.prompt_logprobs_sent;
  }
  w.prompt_logprobs.clear();
  if (!w.samples) return;
  const auto now = Now();
  if (!s.has_first_token) {
    s.has_first_token = true;
    s.first_token = now;
    if (observer_.ttft) observer_.ttft(Seconds(now - s.submitted));
  } else if (observer_.inter_token) {
    observer_.inter_token(Seconds(now - s.last_token));
  }
  s.last_token = now;
  if (w.emitted) {
    s.stream->Push(TokenEvent{*w.emitted, w.logprob, std::move(w.top)});
    ++s.tokens_sent;
  }
  w.top = {};
}

// The end of a sequence: its live state moves into a checkpoint, or waits for the handler's word if
// stop strings may still cut the answer. The end is told last: whoever hears it finds the
// checkpoint in the tree and the slot free.
void EngineCore::Finish(SequencePtr s, FinishReason reason, Status error) {
  const bool had_slot = s->state.has_value();
  const bool stream_said = s->stream->cancelled() || s->stream->ended().has_value();
  const bool waits = had_slot && s->lease && s->request.has_stop_strings && !stream_said &&
                     (reason == FinishReason::kLength || reason == FinishReason::kStop);
  if (!had_slot) --stats_.queue_length;
  if (reason == FinishReason::kCancelled) ++stats_.cancelled;
  admission_waits_ = false;
  Sequence& ended = *s;
  const bool late = error.code() == StatusCode::kDeadlineExceeded;  // as was asked for
  const LogLevel level = late ? LogLevel::kDebug : LogLevel::kWarning;
  if (reason == FinishReason::kError && LogEnabled(level))
    LogAbout(ended, level, "[engine] ended", {{"error", error.message()}});
  EndEvent end = s->MakeEnd(reason, std::move(error));
  if (waits) {
    s->closing_until =
        Now() + std::chrono::duration_cast<Clock::duration>(
                    std::chrono::duration<double, std::milli>(options_.closing_ms_max));
    closing_.push_back(std::move(s));
  } else {
    try {
      PublishFinish(*s);
      LetGo(*s);
    } catch (...) {  // the answer is complete all the same
      s->TellEnd(std::move(end));
      throw;
    }
  }
  UpdateGauges();
  ended.TellEnd(std::move(end));
}

// REQUIRES: the sequence runs no more. Nothing happens where there is nothing to keep.
void EngineCore::PublishFinish(Sequence& s) {
  const int64_t position = s.position();
  if (!s.lease || !s.state || position == 0) return;
  const std::optional<int64_t> kept = s.stream->ended();
  if (kept && position > s.prompt_size() + *kept) return;
  const auto tokens = std::span<const Token>(s.tokens).first(static_cast<size_t>(position));
  if (!WantsFinishMark(position, tree_.LastCheckpoint(s.lease, tokens),
                       model_.layout().trimmable()))
    return;
  StateBuffer buffer = s.state->TakeState();
  tree_.Publish(s.lease, tokens, s.state->blocks(), std::move(buffer), kMarkFinish,
                s.path_type(position));
}

void EngineCore::LetGo(Sequence& s) noexcept {
  s.pending.clear();
  s.lease = Lease();
  s.state.reset();
}

// Under memory pressure: the state becomes a checkpoint and the sequence waits, first in the queue.
// If the checkpoint is evicted too, its tokens are replayed.
void EngineCore::Preempt(Sequence& sequence) {
  SequencePtr s = TakeActive(sequence);
  s->work.rows = 0;
  PublishFinish(*s);
  LetGo(*s);
  ++stats_.preemptions;
  if (LogEnabled(LogLevel::kDebug)) {
    LogAbout(*s, LogLevel::kDebug, "[engine] preempted",
             {{"generated", s->generated()}, {"live_bytes", static_cast<int64_t>(live_bytes())}});
  }
  admission_waits_ = true;
  waiting_.push_front(std::move(s));  // if this throws, its destructor tells the client
  ++stats_.queue_length;
}

EngineCore::SequencePtr EngineCore::TakeActive(const Sequence& sequence) {
  const auto at = std::find_if(active_.begin(), active_.end(),
                               [&](const SequencePtr& s) { return s.get() == &sequence; });
  CHECK(at != active_.end());
  SequencePtr taken = std::move(*at);
  active_.erase(at);
  stats_.slots_busy = static_cast<int64_t>(active_.size());
  return taken;
}

}  // namespace cairn
