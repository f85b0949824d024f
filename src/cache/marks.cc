#include "cache/marks.h"

#include <algorithm>

namespace cairn {
namespace {

constexpr int64_t kNearEndTokens = 16;   // a re-rendered last message often differs only in its end
constexpr int64_t kTurnGapTokens = 256;  // a turn this long is worth a checkpoint of its own
constexpr size_t kLastTurns = 3;
constexpr MarkKinds kNeverSkipped = kMarkGrid | kMarkEnd;

void AddGrid(const MarkInputs& in, std::vector<Mark>& marks) {
  for (int64_t p = (in.restore_point / in.stride + 1) * in.stride; p <= in.prompt_tokens;
       p += in.stride) {
    marks.push_back({p, kMarkGrid});
  }
}

// Returns whether there was any turn start behind the restore point.
bool AddTurns(const MarkInputs& in, std::vector<Mark>& marks) {
  const auto begin =
      std::upper_bound(in.turn_starts.begin(), in.turn_starts.end(), in.restore_point);
  const auto end = std::upper_bound(begin, in.turn_starts.end(), in.prompt_tokens);
  const size_t count = static_cast<size_t>(end - begin);
  int64_t before = in.restore_point;
  for (size_t i = 0; i < count; ++i) {
    const int64_t p = begin[i];
    if (i + kLastTurns >= count || p - before >= kTurnGapTokens) marks.push_back({p, kMarkTurn});
    before = p;
  }
  return count > 0;
}

// Marks of one position become one mark.
void SortAndJoin(std::vector<Mark>& marks) {
  std::sort(marks.begin(), marks.end(),
            [](const Mark& a, const Mark& b) { return a.position < b.position; });
  size_t out = 0;
  for (const Mark& mark : marks) {
    if (out > 0 && marks[out - 1].position == mark.position) {
      marks[out - 1].kinds |= mark.kinds;
    } else {
      marks[out++] = mark;
    }
  }
  marks.resize(out);
}

bool IsClose(int64_t position, int64_t checkpoint) {
  return checkpoint > 0 && checkpoint <= position && position - checkpoint <= kMarkNearTokens;
}

// Drops skippable marks that lie close behind a checkpoint, existing or planned.
void SkipClose(const MarkInputs& in, std::vector<Mark>& marks) {
  int64_t last = in.restore_point;
  size_t next_existing = 0;
  std::erase_if(marks, [&](const Mark& mark) {
    while (next_existing < in.checkpoints.size() &&
           in.checkpoints[next_existing] <= mark.position) {
      last = std::max(last, in.checkpoints[next_existing++]);
    }
    const bool skip = (mark.kinds & kNeverSkipped) == 0 && IsClose(mark.position, last);
    if (!skip) last = mark.position;
    return skip;
  });
}

}  // namespace

std::vector<const char*> MarkKindNames(MarkKinds kinds) {
  static constexpr const char* kNames[] = {"grid", "turn", "near-end", "branch", "end", "finish"};
  std::vector<const char*> names;
  for (int i = 0; i < 6; ++i) {
    if (kinds >> i & 1) names.push_back(kNames[i]);
  }
  return names;
}

std::vector<Mark> PlanMarks(const MarkInputs& in) {
  std::vector<Mark> marks;
  if (in.prompt_tokens <= in.restore_point) return marks;
  if (!in.trimmable) {
    AddGrid(in, marks);
    const bool has_turns = AddTurns(in, marks);
    const int64_t near_end = in.prompt_tokens - kNearEndTokens;
    if (!has_turns && near_end > in.restore_point) marks.push_back({near_end, kMarkNearEnd});
    if (in.matched - in.restore_point >= kMarkBranchTokens)
      marks.push_back({in.matched, kMarkBranch});
  }
  marks.push_back({in.prompt_tokens, kMarkEnd});
  SortAndJoin(marks);
  SkipClose(in, marks);
  return marks;
}

std::vector<int64_t> FindTurnStarts(std::span<const Token> tokens,
                                    std::span<const std::vector<Token>> headers) {
  std::vector<int64_t> starts;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const std::span<const Token> rest = tokens.subspan(i);
    const bool found = std::any_of(headers.begin(), headers.end(), [&](const auto& header) {
      return !header.empty() && header.size() <= rest.size() &&
             std::equal(header.begin(), header.end(), rest.begin());
    });
    if (found) starts.push_back(static_cast<int64_t>(i));
  }
  return starts;
}

bool IsGenerationGridMark(int64_t position, int64_t stride, bool trimmable) {
  return !trimmable && position % stride == 0;
}

bool WantsFinishMark(int64_t position, std::optional<int64_t> last_checkpoint, bool trimmable) {
  if (position <= 0) return false;
  return trimmable || !last_checkpoint || !IsClose(position, *last_checkpoint);
}

}  // namespace cairn
