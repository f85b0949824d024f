// Admit: who ends, who waits, who gets a slot and starts from which restore point.
#include <algorithm>
#include <utility>

#include "engine/engine_core.h"
#include "engine/engine_log.h"

namespace cairn {
namespace {

Status DeadlineExceeded() {
  return {StatusCode::kDeadlineExceeded, "[engine] the request's time is over"};
}

}  // namespace

void EngineCore::Enqueue(std::unique_ptr<Sequence> sequence) {
  Sequence& s = *sequence;
  const uint64_t pinned = PinnedBytesBeside(s.request);
  if (const Status fits = CheckFits(s.prompt_size(), pinned); !fits.ok()) {
    --stats_.queue_length;
    return s.TellError(fits);
  }
  s.max_tokens = std::min(s.max_tokens, TokensThatFit(pinned) - s.prompt_size());
  share_.Enter(sequence->share_key);
  sequence->share = &share_;
  waiting_.push_back(std::move(sequence));
  stats_.in_engine = static_cast<int64_t>(active_.size() + waiting_.size());
}

// Waiting ones that are cancelled or too late: they never had a slot.
void EngineCore::EndWaiting() {
  for (size_t i = 0; i < waiting_.size();) {
    const Sequence& s = *waiting_[i];
    const bool cancelled = s.stream->cancelled() || s.stream->ended().has_value();
    if (!cancelled && !IsPast(s.deadline())) {
      ++i;
      continue;
    }
    // Made first: a throw between here and Finish would leave one too many in queue_length.
    Status error = cancelled ? Status() : DeadlineExceeded();
    SequencePtr taken = std::move(waiting_[i]);
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
    Finish(std::move(taken), cancelled ? FinishReason::kCancelled : FinishReason::kError,
           std::move(error));
  }
}

void EngineCore::EndRunning() {
  for (size_t i = 0; i < active_.size();) {
    const Sequence& s = *active_[i];
    if (s.stream->cancelled()) {
      Finish(TakeActive(s), FinishReason::kCancelled, Status());
    } else if (s.stream->ended().has_value()) {
      Finish(TakeActive(s), FinishReason::kStop, Status());
    } else if (IsPast(s.deadline())) {
      Finish(TakeActive(s), FinishReason::kError, DeadlineExceeded());
    } else {
      ++i;
    }
  }
}

// Finished sequences whose handler has yet to say how many tokens it kept.
void EngineCore::EndClosing() {
  for (size_t i = 0; i < closing_.size();) {
    Sequence& s = *closing_[i];
    const bool said = s.stream->cancelled() || s.stream->ended().has_value();
    if (!said && !IsPast(s.closing_until)) {
      ++i;
      continue;
    }
    if (said) PublishFinish(s);
    LetGo(s);
    closing_.erase(closing_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

void EngineCore::AdmitWaiting() {
  int prefilling = 0;
  for (const SequencePtr& s : active_) prefilling += s->prefilling();
  if (active_.empty()) admission_waits_ = false;
  PassOverWaiters();
  while (!admission_waits_ && static_cast<int>(active_.size()) < options_.decode_concurrency &&
         prefilling < options_.prompt_concurrency) {
    const std::optional<size_t> next = NextToAdmit();
    if (!next) return;
    Sequence& s = *waiting_[*next];
    if (WaitsForSibling(s)) {
      s.passed_over_turn = turn_;
      continue;
    }
    starting_ = &s;
    Status started = Start(s);
    // Out of memory: first the buffers that only wait for their handlers, then idle checkpoints.
    while (!started.ok() && FreeIdleMemory()) started = Start(s);
    starting_ = nullptr;
    if (!started.ok() && !active_.empty()) {
      admission_waits_ = true;
      return;
    }
    SequencePtr taken = std::move(waiting_[*next]);
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(*next));
    if (!started.ok()) {  // alone, and still no room
      Finish(std::move(taken), FinishReason::kError, std::move(started));
      continue;
    }
    prefilling += taken->prefilling();
    active_.push_back(std::move(taken));
    ++stats_.slots_busy;
    --stats_.queue_length;
  }
}

// What nobody is using: states that only wait for their handler's last word, then, if it is the
// pools that are empty, checkpoints. False: there is nothing more.
bool EngineCore::FreeIdleMemory() {
  if (!closing_.empty()) {
    LetGo(*closing_.front());
    closing_.erase(closing_.begin());
    return true;
  }
  return LiveRoom(states_.buffer_bytes() + blocks_.block_bytes()) && tree_.EvictOne();
}

// Finds, restores and reports. Errors: kResourceExhausted; then the sequence is as before.
Status EngineCore::Start(Sequence& s) {
  const auto begin = Clock::now();
  if (!s.request.cache_prompt)
    RETURN_IF_ERROR(StartWithoutCache(s, MissReason::kDisabledByRequest));
  else if (!options_.cache.enabled())
    RETURN_IF_ERROR(StartWithoutCache(
        s, s.request.prompt_logprobs ? MissReason::kPromptLogprobs : MissReason::kEmptyCache));
  else
    RETURN_IF_ERROR(StartFromTree(s));
  if (observer_.snapshot && s.position() > 0)
    observer_.snapshot(std::chrono::duration<double>(Clock::now() - begin).count());
  return Status();
}

Status EngineCore::StartWithoutCache(Sequence& s, MissReason reason) {
  Match nothing;
  ASSIGN_OR_RETURN(s.state, RestoreState(s, nothing));
  s.marks.clear();
  ReportReuse(
      s,
      {.prompt_tokens = s.prompt_size(), .restore_point = 0, .matched = 0, .miss_reason = reason});
  return Status();
}

Status EngineCore::StartFromTree(Sequence& s) {
  const bool logprobs_first =
      s.request.prompt_logprobs && (!s.reuse || s.prompt_logprobs_sent + 1 < s.prompt_size());
  Match match = tree_.Find(s.tokens, s.request.cache_salt);
  // Prompt logprobs need every row that was not looked at yet.
  if (logprobs_first && match.restore_point > s.prompt_logprobs_sent) {
    match = Match{.matched = match.matched, .miss_reason = MissReason::kPromptLogprobs};
  }
  if (match.restore_point == 0 && logprobs_first)
    s.lease = tree_.AcquireRoot(s.request.cache_salt);
  else
    s.lease = tree_.Acquire(match, s.request.cache_salt);
  Result<SequenceState> state = RestoreState(s, match);
  if (!state.ok()) {
    s.lease = Lease();
    return state.status();
  }
  s.state = std::move(*state);
  PlanSequenceMarks(s, std::min(match.matched, s.prompt_size()));
  ReportReuse(s, {.prompt_tokens = s.prompt_size(),
                  .restore_point = match.restore_point,
                  .matched = std::min(match.matched, s.prompt_size()),
                  .miss_reason = logprobs_first ? MissReason::kPromptLogprobs : match.miss_reason});
  return Status();
}

Result<SequenceState> EngineCore::RestoreState(Sequence& s, const Match& match) {
  const bool copies_block = match.restore_point % kBlockTokens != 0;
  const uint64_t blocks = copies_block ? 1 : 0;
  const bool live_room = LiveRoom(states_.buffer_bytes() + blocks * blocks_.block_bytes());
  // What the process has grown by is the cache's to give, not the sequence's. Its lease protects
  // what it restores.
  while (live_room && grown_bytes_ > 0 && !PoolRoom(blocks, 1, grown_bytes_) && tree_.EvictOne()) {
  }
  if (!live_room || !PoolRoom(blocks, 1))
    return ResourceExhausted("[engine] no room for one more sequence");
  if (match.restore_point == 0) return SequenceState::Create(blocks_, states_);
  return tree_.Restore(s.lease, blocks_, states_);
}

void EngineCore::PlanSequenceMarks(Sequence& s, int64_t matched) {
  s.next_mark = 0;
  s.marks.clear();
  if (s.position() >= s.prompt_size()) return;
  const std::vector<int64_t> turn_starts = FindTurnStarts(s.request.prompt, options_.turn_headers);
  std::vector<int64_t> existing;
  for (const Mark& mark : tree_.Checkpoints(s.request.prompt, s.request.cache_salt))
    existing.push_back(mark.position);
  s.marks = PlanMarks({.prompt_tokens = s.prompt_size(),
                       .restore_point = s.position(),
                       .matched = std::max(matched, s.position()),
                       .stride = options_.cache.stride,
                       .turn_starts = turn_starts,
                       .checkpoints = existing,
                       .trimmable = model_.layout().trimmable()});
  // It may be back after a preemption, with others that wait for what it computes.
  for (const SequencePtr& w : waiting_)
    if (w->waits_for == s.id && w->waits_until > s.position()) PlantMark(s, w->waits_until);
}

// The first admission fixes what the client is told; a later one, after a preemption, says nothing.
void EngineCore::ReportReuse(Sequence& s, const ReuseReport& reuse) {
  if (s.reuse) return;
  s.reuse = reuse;
  // What was restored needs no progress event, not even if a preemption makes it be replayed.
  s.progress_sent = reuse.restore_point;
  s.admitted = Now();
  s.tokens.reserve(s.tokens.size() + static_cast<size_t>(s.max_tokens));
  s.masked_before_min_tokens = options_.end_tokens;
  s.masked_before_min_tokens.insert(s.masked_before_min_tokens.end(),
                                    s.request.stop_token_ids.begin(),
                                    s.request.stop_token_ids.end());
  if (s.request.ignore_eos) s.masked_always = options_.end_tokens;
  stats_.prompt_tokens += static_cast<uint64_t>(reuse.prompt_tokens);
  stats_.cached_tokens += static_cast<uint64_t>(reuse.restore_point);
  stats_.replayed_tokens += static_cast<uint64_t>(reuse.replayed_tokens());
  if (observer_.lookup) observer_.lookup(reuse);
  if (LogEnabled(LogLevel::kDebug)) {
    LogAbout(s, LogLevel::kDebug, "[engine] admitted",
             {{"prompt_tokens", reuse.prompt_tokens},
              {"restore_point", reuse.restore_point},
              {"miss_reason", reuse.miss_reason ? MissReasonName(*reuse.miss_reason) : "none"}});
  }
  s.stream->Push(AdmittedEvent{reuse});
}

bool EngineCore::LiveRoom(uint64_t bytes_more) const {
  const uint64_t live = live_bytes();
  return live <= options_.live_bytes_max && bytes_more <= options_.live_bytes_max - live;
}

}  // namespace cairn
