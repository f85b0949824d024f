#include "engine/scheduler.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace cairn {
namespace {

constexpr int kShortShare = 4;  // one row in so many goes to the shortest prompts

// What is still to be given: rows, of prompts only as far as their cost goes, and rows with logits.
struct Budget {
  int rows;
  double cost;
  int logit_rows;

  // At least one row if `first`, whatever it costs.
  void Give(const PlanSequence& s, PlannedRows& p, bool first) {
    const int affordable = static_cast<int>(std::min(cost / s.row_cost, kRowsMax));
    int64_t more = std::min<int64_t>({s.rows_wanted - p.rows, rows,
                                      first && p.rows == 0 ? std::max(1, affordable) : affordable});
    if (s.logits_each_row) more = std::min<int64_t>(more, logit_rows);
    if (more <= 0 || (p.rows == 0 && logit_rows == 0)) return;
    if (s.logits_each_row)
      logit_rows -= static_cast<int>(more);
    else if (p.rows == 0)
      --logit_rows;
    p.rows += static_cast<int>(more);
    rows -= static_cast<int>(more);
    cost = std::max(0.0, cost - static_cast<double>(more) * s.row_cost);
  }

 private:
  static constexpr double kRowsMax = 1 << 30;
};

void PlanDecodes(std::span<const PlanSequence> sequences, uint64_t turn, Budget& budget,
                 std::vector<PlannedRows>& plan) {
  const size_t n = sequences.size();
  for (size_t i = 0; i < n && budget.rows > 0 && budget.logit_rows > 0; ++i) {
    const PlanSequence& s = sequences[(turn + i) % n];
    if (s.rows_wanted != 1) continue;
    plan.push_back({s.index, 1});
    --budget.rows;
    --budget.logit_rows;
  }
}

}  // namespace

std::optional<int> Plan(std::span<const PlanSequence> sequences, const PlanLimits& limits,
                        uint64_t turn, std::vector<PlannedRows>& plan) {
  plan.clear();
  Budget budget{limits.rows_max, static_cast<double>(limits.prefill_rows_max),
                limits.logit_rows_max};
  PlanDecodes(sequences, turn, budget, plan);
  // While they are being sorted, the index is that in `sequences`.
  const auto first = static_cast<std::ptrdiff_t>(plan.size());
  for (size_t i = 0; i < sequences.size(); ++i)
    if (sequences[i].rows_wanted > 1) plan.push_back({static_cast<int>(i), 0});
  const std::span<PlannedRows> prefills = std::span(plan).subspan(static_cast<size_t>(first));
  if (prefills.empty()) return std::nullopt;
  auto of = [&](const PlannedRows& p) -> const PlanSequence& {
    return sequences[static_cast<size_t>(p.index)];
  };
  std::sort(prefills.begin(), prefills.end(), [&](const auto& a, const auto& b) {
    return std::tuple(of(a).priority, of(a).rows_wanted, a.index) <
           std::tuple(of(b).priority, of(b).rows_wanted, b.index);
  });
  if (prefills.size() > 1) {
    const double all = std::min<double>(budget.cost, budget.rows);
    Budget share = budget;
    share.cost = all / kShortShare;
    for (PlannedRows& p : prefills)  // one that takes a logit row for each row is never short
      if (!of(p).logits_each_row) share.Give(of(p), p, false);
    budget = {share.rows, budget.cost - (all / kShortShare - share.cost), share.logit_rows};
  }
  std::sort(prefills.begin(), prefills.end(), [&](const auto& a, const auto& b) {
    return std::tuple(of(a).priority, of(a).key_rows, of(a).led_turn, a.index) <
           std::tuple(of(b).priority, of(b).key_rows, of(b).led_turn, b.index);
  });
  bool leads = true;
  for (PlannedRows& p : prefills) budget.Give(of(p), p, std::exchange(leads, false));
  const int leader = of(prefills.front()).index;
  for (PlannedRows& p : prefills) p.index = of(p).index;
  std::erase_if(plan, [](const PlannedRows& p) { return p.rows == 0; });
  return leader;
}

FairShare::Key* FairShare::Find(uint64_t key) {
  const auto at =
      std::find_if(keys_.begin(), keys_.end(), [&](const Key& k) { return k.key == key; });
  return at == keys_.end() ? nullptr : &*at;
}

const FairShare::Key* FairShare::Find(uint64_t key) const {
  const auto at =
      std::find_if(keys_.begin(), keys_.end(), [&](const Key& k) { return k.key == key; });
  return at == keys_.end() ? nullptr : &*at;
}

void FairShare::Enter(uint64_t key) {
  if (Key* k = Find(key)) {
    ++k->requests;
    return;
  }
  uint64_t least = keys_.empty() ? 0 : std::numeric_limits<uint64_t>::max();
  for (const Key& k : keys_) least = std::min(least, k.rows);
  keys_.push_back({key, 1, least});
}

void FairShare::Leave(uint64_t key) {
  Key* k = Find(key);
  if (k == nullptr || --k->requests > 0) return;
  *k = keys_.back();
  keys_.pop_back();
}

void FairShare::Charge(uint64_t key, int rows) {
  if (Key* k = Find(key)) k->rows += static_cast<uint64_t>(rows);
}

uint64_t FairShare::rows(uint64_t key) const {
  const Key* k = Find(key);
  return k == nullptr ? 0 : k->rows;
}

}  // namespace cairn
