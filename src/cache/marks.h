// Where checkpoints are wanted: positions in a prompt and in its generation. Pure functions.
//
// For a layout that cannot be trimmed (n = prompt length, r = restore point, m = matched length;
// all positions p with r < p <= n):
//   grid      every k * stride, in the prompt and in the generation
//   turn      starts of turn headers: the last 3, and each >= 256 after the turn start before it
//             (the first: after r)
//   near-end  n - 16, if there is no turn start behind r
//   branch    m, if m - r >= 64
//   end       n
//   finish    where a sequence ends, is cancelled, or is preempted
// A turn, near-end, branch or finish mark <= 16 tokens after another checkpoint of the path
// (existing or planned) is skipped; grid and end never are. Layouts of KV only: end and finish,
// never skipped, because they cost no state.
//
// Threads: free functions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/token.h"

namespace cairn {

// A set of kinds: one position may be several.
using MarkKinds = uint8_t;
inline constexpr MarkKinds kMarkGrid = 1, kMarkTurn = 2, kMarkNearEnd = 4, kMarkBranch = 8,
                           kMarkEnd = 16, kMarkFinish = 32;
std::vector<const char*> MarkKindNames(MarkKinds kinds);  // "grid", "turn", "near-end", ...

// A lesser mark this close behind a checkpoint saves nothing.
inline constexpr int64_t kMarkNearTokens = 16;
// A shorter shared prefix is replayed sooner than it is worth a state.
inline constexpr int64_t kMarkBranchTokens = 64;

struct Mark {
  int64_t position;  // a checkpoint after this many tokens
  MarkKinds kinds;
  friend bool operator==(const Mark&, const Mark&) = default;
};

struct MarkInputs {
  int64_t prompt_tokens = 0;
  int64_t restore_point = 0;
  int64_t matched = 0;
  int64_t stride = 2048;
  std::span<const int64_t> turn_starts;  // FindTurnStarts(prompt), ascending
  std::span<const int64_t> checkpoints;  // existing ones of the path, ascending; the restore point
                                         // counts as one by itself
  bool trimmable = false;
};

// The marks of a prompt, ascending, one per position.
std::vector<Mark> PlanMarks(const MarkInputs& in);

// Positions at which one of the header token sequences begins, ascending. Empty headers match
// nothing.
std::vector<int64_t> FindTurnStarts(std::span<const Token> tokens,
                                    std::span<const std::vector<Token>> headers);

// Whether a checkpoint is wanted after `position` tokens of prompt + generation (position >
// prompt).
bool IsGenerationGridMark(int64_t position, int64_t stride, bool trimmable);

// Whether a sequence that ends at `position` leaves a finish checkpoint, if the deepest checkpoint
// of its path at or before `position` is at `last_checkpoint` (nullopt: there is none).
bool WantsFinishMark(int64_t position, std::optional<int64_t> last_checkpoint, bool trimmable);

}  // namespace cairn
