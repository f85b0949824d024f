#include "cache/sim/replay.h"

#include <algorithm>
#include <chrono>

#include "cache/prefix_tree.h"
#include "cache/sim/future.h"
#include "state/sequence_state.h"

namespace cairn {
namespace {

// Only the ratio of sizes counts for the tree. Small ones keep the replay's copies cheap.
constexpr uint64_t kShrink = 384;

Result<StateLayout> ShrunkLayout(const SimShape& shape) {
  std::vector<StatePart> parts;
  if (shape.kv_bytes_per_token > 0) {
    parts.push_back({0, FullKv{std::max<uint64_t>(1, shape.kv_bytes_per_token / kShrink)}});
  }
  if (shape.state_bytes > 0) {
    parts.push_back({1, Recurrent{std::max<uint64_t>(64, shape.state_bytes / kShrink)}});
  }
  return StateLayout::Create(std::move(parts), 64);
}

CacheOptions MakeCacheOptions(const ReplayOptions& options) {
  CacheOptions cache;
  cache.stride = options.stride;
  cache.bytes_max = options.bytes_max ? *options.bytes_max / kShrink : uint64_t{1} << 60;
  cache.replay_cost = options.shape.cost;
  switch (options.policy) {
    case SimPolicy::kValue:
    case SimPolicy::kFuture:
      cache.policy = CachePolicy::kValue;
      break;
    case SimPolicy::kLru:
    case SimPolicy::kGridOnly:
      cache.policy = CachePolicy::kLru;
      break;
    case SimPolicy::kLruType:
      cache.policy = CachePolicy::kLruType;
      break;
  }
  return cache;
}

class Replayer {
 public:
  Replayer(const ReplayOptions& options, const StateLayout& layout, CacheOptions cache)
      : options_(options),
        layout_(layout),
        blocks_(layout),
        states_(layout),
        tree_(layout, cache) {}

  Status Run(const Trace& trace, Future* future) {
    for (const TraceRequest& request : trace.requests) {
      if (future != nullptr) future->NextRequest();
      RETURN_IF_ERROR(RunOne(request));
      if (options_.check_each_request) tree_.CheckInvariants();
      figures_.bytes_most = std::max(figures_.bytes_most, tree_.bytes() * kShrink);
    }
    figures_.requests = static_cast<int64_t>(trace.requests.size());
    figures_.bytes = tree_.bytes() * kShrink;
    figures_.evictions = tree_.evictions().bytes + tree_.evictions().paths;
    return {};
  }
  ReplayFigures& figures() { return figures_; }

 private:
  // As the engine does for one sequence: find, restore, run in steps, publish, finish.
  Status RunOne(const TraceRequest& request) {
    const TokenRequest r = Tokenize(request);
    const int64_t n = r.prompt_tokens;
    if (n == 0) return InvalidArgument("[trace] a request without prompt tokens");
    const std::span<const Token> tokens = r.tokens, prompt = tokens.first(n);
    const Match match = tree_.Find(prompt, request.salt);
    Count(match, n);
    Lease lease = tree_.Acquire(match, request.salt);
    ASSIGN_OR_RETURN(SequenceState state, tree_.Restore(lease, blocks_, states_));
    std::vector<int64_t> existing;
    for (const Mark& mark : tree_.Checkpoints(prompt, request.salt)) {
      existing.push_back(mark.position);
    }
    std::vector<Mark> marks = PlanMarks({.prompt_tokens = n,
                                         .restore_point = state.length(),
                                         .matched = std::max(match.matched, state.length()),
                                         .stride = options_.stride,
                                         .turn_starts = r.turn_starts,
                                         .checkpoints = existing,
                                         .trimmable = layout_.trimmable()});
    const int64_t end = static_cast<int64_t>(tokens.size());
    for (int64_t p = (n / options_.stride + 1) * options_.stride; p <= end; p += options_.stride) {
      if (IsGenerationGridMark(p, options_.stride, layout_.trimmable())) {
        marks.push_back({p, kMarkGrid});
      }
    }
    if (options_.policy == SimPolicy::kGridOnly) {
      std::erase_if(marks, [](const Mark& mark) { return (mark.kinds & kMarkGrid) == 0; });
    }
    size_t next = 0;
    while (state.length() < end) {
      const int64_t limit = state.length() < n ? n : end;
      RETURN_IF_ERROR(
          Step(r, std::min(options_.step_rows, limit - state.length()), marks, next, lease, state));
    }
    if (options_.policy != SimPolicy::kGridOnly &&
        WantsFinishMark(end, tree_.LastCheckpoint(lease, tokens), layout_.trimmable())) {
      tree_.Publish(lease, tokens, state.blocks(), state.TakeState(), kMarkFinish,
                    PathTypeAt(end, SystemEnd(r), TailBegin(r), r.turn_starts.empty()));
    }
    return {};
  }

  // The next rows, with the marks from `next` on that lie in them.
  Status Step(const TokenRequest& r, int64_t rows, const std::vector<Mark>& marks, size_t& next,
              Lease& lease, SequenceState& state) {
    RETURN_IF_ERROR(state.Reserve(rows));
    const int64_t end = state.length() + rows;
    std::vector<Mark> wanted;
    while (next < marks.size() && marks[next].position <= end) wanted.push_back(marks[next++]);
    const std::vector<Mark> got = tree_.ReserveMarks(lease, state.blocks(), wanted);
    state.Advance(rows);
    for (const Mark& mark : got) {
      ASSIGN_OR_RETURN(StateBuffer buffer, states_.Allocate());
      tree_.Publish(lease, std::span(r.tokens).first(mark.position), state.blocks(),
                    std::move(buffer), mark.kinds,
                    PathTypeAt(mark.position, SystemEnd(r), TailBegin(r), r.turn_starts.empty()));
    }
    tree_.ReleaseMarks(lease);
    return {};
  }

  // As the chat path says: the system part ends at the second header, the tail begins at the last.
  static int64_t SystemEnd(const TokenRequest& r) {
    return r.turn_starts.size() > 1 ? r.turn_starts[1] : 0;
  }
  static int64_t TailBegin(const TokenRequest& r) {
    return r.turn_starts.empty() ? 0 : r.turn_starts.back();
  }

  void Count(const Match& match, int64_t n) {
    figures_.prompt_tokens += n;
    figures_.reused_tokens += match.restore_point;
    figures_.replay_cost += options_.shape.cost.Of(match.restore_point, n);
    figures_.total_cost += options_.shape.cost.Of(0, n);
    figures_.evicted_reasons += match.miss_reason == MissReason::kEvicted;
    figures_.restore_points.push_back(match.restore_point);
  }

  const ReplayOptions& options_;
  const StateLayout layout_;
  BlockPool blocks_;
  StatePool states_;
  PrefixTree tree_;
  ReplayFigures figures_;
};

Result<ReplayFigures> ReplayWith(const Trace& trace, const ReplayOptions& options, Future* future) {
  ASSIGN_OR_RETURN(const StateLayout layout, ShrunkLayout(options.shape));
  CacheOptions cache = MakeCacheOptions(options);
  cache.chooser = future;
  const auto begin = std::chrono::steady_clock::now();
  Replayer replayer(options, layout, cache);
  RETURN_IF_ERROR(replayer.Run(trace, future));
  replayer.figures().seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return replayer.figures();
}

}  // namespace

const char* SimPolicyName(SimPolicy policy) {
  switch (policy) {
    case SimPolicy::kValue:
      return "value";
    case SimPolicy::kLru:
      return "lru";
    case SimPolicy::kLruType:
      return "lru-type";
    case SimPolicy::kGridOnly:
      return "grid-only";
    case SimPolicy::kFuture:
      return "future";
  }
  return "unknown";
}

std::optional<SimPolicy> ParseSimPolicy(std::string_view name) {
  for (const SimPolicy policy : {SimPolicy::kValue, SimPolicy::kLru, SimPolicy::kLruType,
                                 SimPolicy::kGridOnly, SimPolicy::kFuture}) {
    if (name == SimPolicyName(policy)) return policy;
  }
  return std::nullopt;
}

Result<ReplayFigures> Replay(const Trace& trace, const ReplayOptions& options) {
  if (options.policy != SimPolicy::kFuture) return ReplayWith(trace, options, nullptr);
  ReplayOptions infinite = options;
  infinite.policy = SimPolicy::kLru;
  infinite.bytes_max.reset();
  ASSIGN_OR_RETURN(const ReplayFigures known, ReplayWith(trace, infinite, nullptr));
  std::optional<ReplayFigures> best;
  // No order is the best one on every trace.
  for (const Future::Order order : {Future::Order::kFarthest, Future::Order::kLeastSaved}) {
    Future future(trace, known.restore_points, order);
    ASSIGN_OR_RETURN(const ReplayFigures figures, ReplayWith(trace, options, &future));
    if (!best || figures.reused_tokens > best->reused_tokens) best = figures;
  }
  return *best;
}

}  // namespace cairn
