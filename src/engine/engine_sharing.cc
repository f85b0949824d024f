// Who is admitted next, and prompts that begin alike: one computes what they share, the others wait
// for its checkpoint.
#include <algorithm>
#include <limits>

#include "engine/engine_core.h"

namespace cairn {
namespace {

int64_t SharedTokens(const Sequence& a, const Sequence& b) {
  const auto& x = a.request.prompt;
  const auto& y = b.request.prompt;
  const size_t n = std::min(x.size(), y.size());
  return std::mismatch(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(n), y.begin()).first -
         x.begin();
}

}  // namespace

// The index in waiting_; those that Admit passed over in this turn are left out.
std::optional<size_t> EngineCore::NextToAdmit() const {
  std::optional<size_t> best;
  Candidate best_candidate;
  for (size_t i = 0; i < waiting_.size(); ++i) {
    const Sequence& s = *waiting_[i];
    if (s.passed_over_turn == turn_) continue;
    Candidate c{.priority = s.priority,
                .preempted = s.reuse.has_value(),
                .key_rows = share_.rows(s.share_key)};
    for (const SequencePtr& a : active_) c.key_running += a->share_key == s.share_key;
    if (best && !(c < best_candidate)) continue;
    best = i;
    best_candidate = c;
  }
  return best;
}

// The running sequence that still computes what this one waits for; nullptr: none.
Sequence* EngineCore::AwaitedBy(const Sequence& s) const {
  if (!s.waits_for) return nullptr;
  for (const SequencePtr& a : active_)
    if (a->id == *s.waits_for && a->position() < s.waits_until) return a.get();
  return nullptr;
}

// Those that wait on are passed over without being chosen first: with hundreds of them that would
// take longer than the step. What they wait for comes as soon as they would.
void EngineCore::PassOverWaiters() {
  for (const SequencePtr& a : active_) a->lent_rows = std::numeric_limits<uint64_t>::max();
  for (const SequencePtr& s : waiting_) {
    Sequence* awaited = AwaitedBy(*s);
    if (awaited == nullptr) continue;
    s->passed_over_turn = turn_;
    awaited->lent_rows = std::min(awaited->lent_rows, share_.rows(s->share_key));
  }
}

// True: another sequence is just computing a prefix of this one's prompt. The wait ends when it has
// passed the place where they part, or ends in whatever way; then this one is looked at afresh, and
// may be the one that the others wait for.
bool EngineCore::WaitsForSibling(Sequence& s) {
  const bool may_share = options_.cache.enabled() && s.request.cache_prompt &&
                         !s.request.prompt_logprobs && !s.reuse && !s.waited_in_vain;
  if (!may_share) return false;
  if (s.waits_for) {
    if (AwaitedBy(s) != nullptr) return true;
    const bool runs = std::any_of(active_.begin(), active_.end(),
                                  [&](const SequencePtr& a) { return a->id == *s.waits_for; });
    s.waits_for.reset();
    // No room for the checkpoint: who waits once more would only be the next one to find none.
    if (runs && tree_.Find(s.tokens, s.request.cache_salt).restore_point + kMarkNearTokens <
                    s.waits_until) {
      s.waited_in_vain = true;
      return false;
    }
  }
  const Leader leader = FindLeader(s);
  if (leader.sequence == nullptr) return false;
  const Match match = tree_.Find(s.tokens, s.request.cache_salt);
  // Not worth a branch mark, not worth a wait.
  if (leader.shared - match.restore_point < kMarkBranchTokens) return false;
  PlantMark(*leader.sequence, leader.shared);
  s.waits_for = leader.sequence->id;
  s.waits_until = leader.shared;
  // What a more urgent request waits for is as urgent.
  leader.sequence->priority = std::min(leader.sequence->priority, s.priority);
  ++stats_.shared_waits;
  return true;
}

// The running sequence that will have computed most of this one's prompt.
EngineCore::Leader EngineCore::FindLeader(const Sequence& s) const {
  Leader best;
  for (const SequencePtr& a : active_) {
    if (!a->prefilling() || !a->lease || a->request.cache_salt != s.request.cache_salt) continue;
    const int64_t shared = SharedTokens(*a, s);
    if (shared > a->position() && shared > best.shared) best = {a.get(), shared};
  }
  return best;
}

// A checkpoint at `position` of a running prompt, unless one is planned there or just before.
void EngineCore::PlantMark(Sequence& s, int64_t position) {
  const auto after = std::upper_bound(s.marks.begin(), s.marks.end(), position,
                                      [](int64_t p, const Mark& m) { return p < m.position; });
  if (after != s.marks.begin() && position - std::prev(after)->position <= kMarkNearTokens) return;
  s.marks.insert(after, {position, kMarkBranch});
}

}  // namespace cairn
