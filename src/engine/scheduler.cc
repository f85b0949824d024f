#include "engine/scheduler.h"

#include <algorithm>

namespace cairn {
namespace {

// Calls visit(sequence) for those that pass `wanted`, beginning with the turn-th.
template <typename Wanted, typename Visit>
void Rotated(std::span<const PlanSequence> sequences, uint64_t turn, Wanted wanted, Visit visit) {
  const size_t n = sequences.size();
  for (size_t i = 0; i < n; ++i) {
    const PlanSequence& s = sequences[(turn + i) % n];
    if (wanted(s)) visit(s);
  }
}

}  // namespace

void Plan(std::span<const PlanSequence> sequences, const PlanLimits& limits, uint64_t turn,
          std::vector<PlannedRows>& plan) {
  plan.clear();
  int rows = limits.rows_max;
  int logit_rows = limits.logit_rows_max;
  auto is_decode = [](const PlanSequence& s) { return s.rows_wanted == 1; };
  auto is_prefill = [](const PlanSequence& s) { return s.rows_wanted > 1; };
  Rotated(sequences, turn, is_decode, [&](const PlanSequence& s) {
    if (rows == 0 || logit_rows == 0) return;
    plan.push_back({s.index, 1});
    --rows;
    --logit_rows;
  });
  // One row and one logit row for as many prefills as there is room for, then the rest in rounds of
  // equal shares until nobody wants more.
  const size_t first_prefill = plan.size();
  Rotated(sequences, turn, is_prefill, [&](const PlanSequence& s) {
    if (rows == 0 || logit_rows == 0) return;
    plan.push_back({s.index, 1});
    --rows;
    --logit_rows;
  });
  for (bool grew = true; grew && rows > 0;) {
    grew = false;
    const int shares = static_cast<int>(plan.size() - first_prefill);
    const int share = shares > 0 ? std::max(1, rows / shares) : 0;
    size_t at = first_prefill;
    Rotated(sequences, turn, is_prefill, [&](const PlanSequence& s) {
      if (at == plan.size() || plan[at].index != s.index) return;
      PlannedRows& p = plan[at++];
      int64_t more = std::min<int64_t>({share, rows, s.rows_wanted - p.rows});
      if (s.logits_each_row) more = std::min<int64_t>(more, logit_rows);
      if (more <= 0) return;
      p.rows += static_cast<int>(more);
      rows -= static_cast<int>(more);
      if (s.logits_each_row) logit_rows -= static_cast<int>(more);
      grew = true;
    });
  }
}

}  // namespace cairn
