// cairn bench cache: replays traces of requests through the real prefix tree, marks and eviction,
// without a model, and prints what each policy reuses at each budget.

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "cache/sim/compare.h"
#include "cache/sim/trace_file.h"
#include "commands.h"
#include "flags.h"
#include "load_model.h"

namespace cairn {
namespace {

struct BenchCacheFlags {
  std::vector<std::string> traces;  // built-in names or files; empty: all built-in ones
  std::vector<std::string> policies = {"value", "lru", "lru-type", "grid-only", "future"};
  std::vector<double> budgets = {0.5, 2, 5, 10, 25, 50, 100};
  int requests = 400;
  int random = 0;
  uint64_t seed = 1;
  int64_t prefill_step_size = 2048;
  std::string kv_bytes_per_token = "12288";
  std::string state_bytes = "20205568";
  bool json = false, csv = false;
};

Result<CompareOptions> ResolveOptions(const BenchCacheFlags& flags) {
  CompareOptions options;
  options.policies.clear();
  for (const std::string& name : flags.policies) {
    const auto policy = ParseSimPolicy(name);
    if (!policy) {
      return InvalidArgument("[flags] --policies " + name +
                             ", wanted value, lru, lru-type, grid-only or future");
    }
    options.policies.push_back(*policy);
  }
  options.budgets.clear();
  for (const double percent : flags.budgets) options.budgets.push_back(percent / 100);
  options.replay.stride = flags.prefill_step_size;
  ASSIGN_OR_RETURN(options.replay.shape.kv_bytes_per_token, ParseSize(flags.kv_bytes_per_token));
  ASSIGN_OR_RETURN(options.replay.shape.state_bytes, ParseSize(flags.state_bytes));
  return options;
}

Result<std::vector<Trace>> ResolveTraces(const BenchCacheFlags& flags) {
  std::vector<Trace> traces;
  std::vector<std::string> names = flags.traces;
  if (names.empty() && flags.random == 0) names = BuiltinTraceNames();
  for (const std::string& name : names) {
    const std::vector<std::string> known = BuiltinTraceNames();
    if (std::find(known.begin(), known.end(), name) != known.end()) {
      traces.push_back(MakeBuiltinTrace(name, flags.requests, flags.seed));
      continue;
    }
    if (!std::filesystem::exists(name)) {
      std::string all;
      for (const std::string& k : known) all += (all.empty() ? "" : ", ") + k;
      return NotFound("[flags] --trace " + name + ": no such file, wanted one or any of " + all);
    }
    ASSIGN_OR_RETURN(Trace trace, ReadTraceFile(name));
    traces.push_back(std::move(trace));
  }
  for (int i = 0; i < flags.random; ++i) {
    traces.push_back(MakeRandomTrace(flags.requests, flags.seed + static_cast<uint64_t>(i)));
  }
  return traces;
}

void PrintCsv(const CompareRow& row) {
  const ReplayFigures& f = row.figures;
  std::printf("%s,%g,%llu,%s,%lld,%lld,%.6f,%lld,%.6f,%llu,%lld,%.3f\n", row.trace.c_str(),
              100 * row.budget, static_cast<unsigned long long>(row.bytes_max), row.policy.c_str(),
              static_cast<long long>(f.requests), static_cast<long long>(f.prompt_tokens),
              f.hit_rate(), static_cast<long long>(f.replayed_tokens()),
              f.total_cost > 0 ? f.replay_cost / f.total_cost : 0,
              static_cast<unsigned long long>(f.evictions),
              static_cast<long long>(f.evicted_reasons), f.seconds);
}

void PrintJson(const CompareRow& row) {
  const ReplayFigures& f = row.figures;
  std::printf(
      "{\"trace\":\"%s\",\"budget_percent\":%g,\"bytes_max\":%llu,\"policy\":\"%s\","
      "\"requests\":%lld,\"prompt_tokens\":%lld,\"hit_rate\":%.6f,\"replayed_tokens\":%lld,"
      "\"replay_cost_share\":%.6f,\"evictions\":%llu,\"evicted_reasons\":%lld,\"seconds\":%.3f}\n",
      row.trace.c_str(), 100 * row.budget, static_cast<unsigned long long>(row.bytes_max),
      row.policy.c_str(), static_cast<long long>(f.requests),
      static_cast<long long>(f.prompt_tokens), f.hit_rate(),
      static_cast<long long>(f.replayed_tokens()),
      f.total_cost > 0 ? f.replay_cost / f.total_cost : 0,
      static_cast<unsigned long long>(f.evictions), static_cast<long long>(f.evicted_reasons),
      f.seconds);
}

void PrintLine(const CompareRow& row) {
  const ReplayFigures& f = row.figures;
  if (row.policy == "infinite") {
    std::printf("%s: %lld requests, %lld prompt tokens; an infinite cache holds %s\n",
                row.trace.c_str(), static_cast<long long>(f.requests),
                static_cast<long long>(f.prompt_tokens), FormatSize(f.bytes_most).c_str());
    std::printf("  %8s  %-10s %9s %16s %10s\n", "budget", "policy", "hit rate", "tokens replayed",
                "evictions");
  }
  std::printf("  %6g %%  %-10s %7.2f %% %16lld %10llu\n", 100 * row.budget, row.policy.c_str(),
              100 * f.hit_rate(), static_cast<long long>(f.replayed_tokens()),
              static_cast<unsigned long long>(f.evictions));
}

void PrintDifferences(const std::vector<CompareRow>& rows) {
  const std::vector<Difference> differences = Differences(rows);
  if (differences.empty()) return;
  std::printf("value - lru, in points of the hit rate, over all traces\n");
  std::printf("  %8s %8s %8s %8s %8s   worst\n", "budget", "min", "10th", "median", "max");
  for (const Difference& d : differences) {
    std::printf("  %6g %% %+8.2f %+8.2f %+8.2f %+8.2f   %s\n", 100 * d.budget, d.min, d.p10,
                d.median, d.max, d.worst.c_str());
  }
}

Status RunBenchCache(const BenchCacheFlags& flags) {
  ASSIGN_OR_RETURN(const CompareOptions options, ResolveOptions(flags));
  ASSIGN_OR_RETURN(const std::vector<Trace> traces, ResolveTraces(flags));
  if (flags.csv) {
    std::printf(
        "trace,budget_percent,bytes_max,policy,requests,prompt_tokens,hit_rate,replayed_tokens,"
        "replay_cost_share,evictions,evicted_reasons,seconds\n");
  }
  std::vector<CompareRow> rows;
  for (const Trace& trace : traces) {
    RETURN_IF_ERROR(CompareOn(trace, options, [&](const CompareRow& row) {
      flags.csv ? PrintCsv(row) : flags.json ? PrintJson(row) : PrintLine(row);
      std::fflush(stdout);
      rows.push_back(row);
    }));
  }
  if (!flags.csv && !flags.json) PrintDifferences(rows);
  return {};
}

}  // namespace

void AddBenchCache(CLI::App& bench, RunCommand& run) {
  auto flags = std::make_shared<BenchCacheFlags>();
  CLI::App* cmd = bench.add_subcommand(
      "cache", "replays traces through the prompt cache, by policy and budget, without a model");
  cmd->add_option("--trace", flags->traces,
                  "built-in traces or files, one JSON request a line (default: all built-in ones)")
      ->delimiter(',');
  cmd->add_option("--policies", flags->policies, "value, lru, lru-type, grid-only, future")
      ->delimiter(',');
  cmd->add_option("--budgets", flags->budgets, "percent of the bytes that an infinite cache holds")
      ->delimiter(',')
      ->check(CLI::Range(0.0001, 1000.0));
  cmd->add_option("--requests", flags->requests, "length of made-up traces")
      ->check(CLI::Range(1, 1 << 20));
  cmd->add_option("--random", flags->random, "traces of random mixtures, in seeds of their own")
      ->check(CLI::Range(0, 10000));
  cmd->add_option("--seed", flags->seed, "of made-up traces");
  cmd->add_option("--prefill-step-size", flags->prefill_step_size,
                  "tokens between grid checkpoints")
      ->check(CLI::Range(int64_t{16}, int64_t{1} << 24));
  cmd->add_option("--kv-bytes-per-token", flags->kv_bytes_per_token, "of the model replayed for");
  cmd->add_option("--state-bytes", flags->state_bytes,
                  "of one checkpoint besides KV; 0: a model without recurrent layers");
  cmd->add_flag("--json", flags->json, "one JSON object a line");
  cmd->add_flag("--csv", flags->csv, "comma-separated values");
  AddEnvironmentNames(*cmd);
  cmd->callback([flags, &run] { run = [flags] { return ExitStatus(RunBenchCache(*flags)); }; });
}

}  // namespace cairn
