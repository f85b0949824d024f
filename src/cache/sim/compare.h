// Policies beside each other on many traces and budgets: what `cairn bench cache` prints and the
// test of the policies checks.
//
// Threads: free functions.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "cache/sim/replay.h"

namespace cairn {

struct CompareOptions {
  ReplayOptions replay;  // all but policy and bytes_max
  std::vector<SimPolicy> policies = {SimPolicy::kValue, SimPolicy::kLru};
  std::vector<double> budgets = {0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1};  // of the infinite cache
};

struct CompareRow {
  std::string trace;
  double budget;  // share of the infinite cache's bytes
  uint64_t bytes_max;
  std::string policy;  // or "infinite", with budget 1
  ReplayFigures figures;
};

// One row for the infinite cache, then one a budget and policy; told to `each` as they come.
Status CompareOn(const Trace& trace, const CompareOptions& options,
                 const std::function<void(const CompareRow&)>& each);

// value minus lru in points of the hit rate, by budget over all traces.
struct Difference {
  double budget, min, p10, median, max;
  std::string worst;  // the trace of the minimum
};
std::vector<Difference> Differences(std::span<const CompareRow> rows);

}  // namespace cairn
