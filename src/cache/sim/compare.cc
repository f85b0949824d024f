#include "cache/sim/compare.h"

#include <algorithm>
#include <map>
#include <optional>

namespace cairn {

Status CompareOn(const Trace& trace, const CompareOptions& options,
                 const std::function<void(const CompareRow&)>& each) {
  ReplayOptions replay = options.replay;
  replay.policy = SimPolicy::kLru;
  replay.bytes_max.reset();
  ASSIGN_OR_RETURN(const ReplayFigures infinite, Replay(trace, replay));
  each({trace.name, 1, infinite.bytes_most, "infinite", infinite});
  for (const double budget : options.budgets) {
    // With all that the infinite cache ever held, no policy has anything to decide.
    replay.bytes_max = static_cast<uint64_t>(budget * static_cast<double>(infinite.bytes_most));
    for (const SimPolicy policy : options.policies) {
      replay.policy = policy;
      ASSIGN_OR_RETURN(const ReplayFigures figures, Replay(trace, replay));
      each({trace.name, budget, *replay.bytes_max, SimPolicyName(policy), figures});
    }
  }
  return {};
}

std::vector<Difference> Differences(std::span<const CompareRow> rows) {
  std::map<std::pair<std::string, double>, std::pair<std::optional<double>, std::optional<double>>>
      pairs;  // value, lru
  for (const CompareRow& row : rows) {
    auto& pair = pairs[{row.trace, row.budget}];
    if (row.policy == "value") pair.first = 100 * row.figures.hit_rate();
    if (row.policy == "lru") pair.second = 100 * row.figures.hit_rate();
  }
  std::map<double, std::vector<std::pair<double, std::string>>> by_budget;
  for (const auto& [key, pair] : pairs) {
    if (pair.first && pair.second) {
      by_budget[key.second].push_back({*pair.first - *pair.second, key.first});
    }
  }
  std::vector<Difference> out;
  for (auto& [budget, list] : by_budget) {
    std::sort(list.begin(), list.end());
    out.push_back({budget, list.front().first, list[list.size() / 10].first,
                   list[list.size() / 2].first, list.back().first, list.front().second});
  }
  return out;
}

}  // namespace cairn
