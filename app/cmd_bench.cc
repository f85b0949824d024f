// cairn bench: prefill, decode, batched decode and branch on this machine, through the engine as
// the server runs it.

#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "bench_checkpoint.h"
#include "bench_runs.h"
#include "cache/stride.h"
#include "commands.h"
#include "flags.h"
#include "kernels/roof.h"
#include "load_model.h"
#include "report.h"

namespace cairn {
namespace {

struct BenchFlags {
  ModelFlags model;
  EngineFlags engine;
  BenchSizes sizes;
  int batch = 8;
  std::optional<int64_t> branch;  // default: kBranchTokens, or less in a shorter context
  bool json = false;
};

constexpr int64_t kBranchTokens = 4096;
constexpr double kBranchShare =
    0.9375;  // where the second prompt leaves the first: 30,000 of 32,000

struct Figures {
  double prefill_tps = 0, decode_tps = 0;
  std::optional<double> batch_tps;
  int64_t branch_tokens = 0;
  std::optional<BenchRuns::Branch> branch;
  int64_t bytes_per_token = 0;  // of decode: weights, state in and out, keys and values
};

std::string Rate(double tps) {
  char text[64];
  std::snprintf(text, sizeof text, "%.1f tokens/s", tps);
  return text;
}

void AddCheckpoint(const CheckpointFigures& c, Report& r) {
  char text[200], save[80] = "save: lost in noise";
  std::vector<std::pair<std::string, double>> figures = {
      {"bytes", static_cast<double>(c.state_bytes)},
      {"restore_ms", c.restore_ms},
      {"restore_gbps", c.restore_gbps},
      {"restore_memcpy_share", c.restore_gbps / c.memcpy_gbps},
      {"memcpy_gbps", c.memcpy_gbps}};
  if (c.save) {
    const double share = c.save->gbps / c.memcpy_gbps;
    std::snprintf(save, sizeof save, "save %.3g ms (%.1f GB/s, %.0f %% of memcpy)", c.save->ms,
                  c.save->gbps, 100 * share);
    figures.insert(
        figures.end(),
        {{"save_ms", c.save->ms}, {"save_gbps", c.save->gbps}, {"save_memcpy_share", share}});
  }
  std::snprintf(text, sizeof text, "%s; %s, restore %.3g ms (%.1f GB/s, %.0f %%), memcpy %.1f GB/s",
                FormatSize(c.state_bytes).c_str(), save, c.restore_ms, c.restore_gbps,
                100 * c.restore_gbps / c.memcpy_gbps, c.memcpy_gbps);
  r.Add("checkpoint", figures, "checkpoint", text);
}

Result<int64_t> BranchTokens(const BenchFlags& flags, const ModelInfo& info) {
  const int64_t tokens = flags.branch.value_or(std::min(kBranchTokens, info.context_length - 1));
  const BenchSizes& s = flags.sizes;
  // A prompt needs room for one token more than it has.
  const int64_t needed = std::max<int64_t>(
      {s.depth + s.prefill + 1, tokens + 1, s.depth + DecodeTokens(s), kCheckpointBenchTokens});
  if (needed <= info.context_length) return tokens;
  return InvalidArgument(
      "[bench] " + std::to_string(needed) + " tokens are needed, but the context is " +
      std::to_string(info.context_length) + "; give --context-length or smaller figures");
}

Result<Figures> Measure(const BenchFlags& flags, int64_t branch_tokens,
                        const std::shared_ptr<const Model>& model, const EngineOptions& options) {
  ASSIGN_OR_RETURN(auto engine, Engine::Create(model, options));
  BenchRuns runs(flags.sizes, model, *engine);
  Figures f;
  ASSIGN_OR_RETURN(f.prefill_tps, runs.Prefill());
  ASSIGN_OR_RETURN(f.decode_tps, runs.Decode(1));
  if (flags.batch > 1) {
    ASSIGN_OR_RETURN(f.batch_tps, runs.Decode(flags.batch));
  }
  f.branch_tokens = branch_tokens;
  if (branch_tokens > 0) {
    ASSIGN_OR_RETURN(f.branch, runs.MeasureBranch(branch_tokens, kBranchShare));
  }
  const StateLayout& layout = model->layout();
  f.bytes_per_token =
      static_cast<int64_t>(model->info().bytes_per_decode_token + 2 * layout.state_bytes() +
                           static_cast<size_t>(flags.sizes.depth) * layout.kv_bytes_per_token());
  return f;
}

void AddFigures(const Figures& f, const BenchFlags& flags, const Roof& roof, Report& r) {
  char text[160];
  const auto bytes = static_cast<double>(f.bytes_per_token);
  const double share = roof.read_gbps > 0 ? f.decode_tps * bytes / (roof.read_gbps * 1e9) : 0;
  r.Add("depth", flags.sizes.depth, "tokens before each run");
  r.Add("prefill_tokens", flags.sizes.prefill, "prefill tokens");
  r.Add("prefill_tps", f.prefill_tps, "prefill", Rate(f.prefill_tps));
  r.Add("decode_tps", f.decode_tps, "decode", Rate(f.decode_tps));
  r.Add("bytes_per_token", f.bytes_per_token, "bytes moved per decoded token",
        FormatSize(static_cast<uint64_t>(f.bytes_per_token)));
  std::snprintf(text, sizeof text, "%.0f %%", 100 * share);
  r.Add("decode_bandwidth_share", share, "share of read bandwidth", text);
  if (f.batch_tps) {
    r.Add("batch", static_cast<int64_t>(flags.batch), "batch");
    r.Add("batch_decode_tps", *f.batch_tps, "batched decode, in all", Rate(*f.batch_tps));
  }
  if (!f.branch) return;
  std::snprintf(
      text, sizeof text, "cold %.3f s, changed at %.2f %%: %.3f s (restored %lld, replayed %lld)",
      f.branch->cold_seconds, 100 * kBranchShare, f.branch->branch_seconds,
      static_cast<long long>(f.branch->restore_point), static_cast<long long>(f.branch->replayed));
  r.Add("branch",
        std::vector<std::pair<std::string, double>>{
            {"prompt_tokens", static_cast<double>(f.branch_tokens)},
            {"cold_seconds", f.branch->cold_seconds},
            {"branch_seconds", f.branch->branch_seconds},
            {"restore_point", static_cast<double>(f.branch->restore_point)},
            {"replayed_tokens", static_cast<double>(f.branch->replayed)}},
        "branch of " + std::to_string(f.branch_tokens), text);
}

void AddRoof(const Roof& roof, Report& r) {
  char text[160];
  std::snprintf(text, sizeof text, "%.0f GFLOP/s f32, %.0f GOP/s int8, %.1f GB/s read",
                roof.fma_gflops, roof.int8_gops, roof.read_gbps);
  r.Add("roof",
        std::vector<std::pair<std::string, double>>{{"fma_gflops", roof.fma_gflops},
                                                    {"int8_gops", roof.int8_gops},
                                                    {"read_gbps", roof.read_gbps}},
        "roof", text);
}

Status RunBench(const BenchFlags& flags) {
  const auto load_start = std::chrono::steady_clock::now();
  ASSIGN_OR_RETURN(LoadedModel loaded, LoadModelFile(flags.model));
  const std::chrono::duration<double> load_time = std::chrono::steady_clock::now() - load_start;
  ASSIGN_OR_RETURN(EngineOptions options, ResolveEngineOptions(flags.model, flags.engine));
  if (!flags.engine.prefill_step_size) options.cache.stride = AutoStride(loaded.model->layout());
  const ModelInfo& info = loaded.model->info();
  ASSIGN_OR_RETURN(const int64_t branch_tokens, BranchTokens(flags, info));
  ThreadPool pool(options.threads);
  const Roof roof = MeasureRoof({options.cpu_level, &pool});
  ASSIGN_OR_RETURN(const CheckpointFigures checkpoint,
                   MeasureCheckpoint(*loaded.model, {options.cpu_level, &pool}));
  ASSIGN_OR_RETURN(const Figures figures, Measure(flags, branch_tokens, loaded.model, options));
  Report r;
  r.Add("model", info.name + " " + info.architecture + " " + info.quantization, "model");
  r.Add("cpu_level", std::string(CpuLevelName(options.cpu_level)), "CPU level");
  r.Add("threads", static_cast<int64_t>(options.threads), "threads");
  r.Add("load_seconds", load_time.count(), "load time, s");
  AddRoof(roof, r);
  AddFigures(figures, flags, roof, r);
  AddCheckpoint(checkpoint, r);
  flags.json ? r.PrintJson() : r.PrintTable();
  return {};
}

}  // namespace

void AddBench(CLI::App& app, RunCommand& run) {
  auto flags = std::make_shared<BenchFlags>();
  CLI::App* cmd =
      app.add_subcommand("bench", "prefill, decode, batched decode and branch on this machine");
  AddModelFlags(*cmd, flags->model);
  AddStrideFlag(*cmd, flags->engine.prefill_step_size);
  cmd->add_option("--prefill", flags->sizes.prefill, "tokens of the cold prompt")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 22));
  cmd->add_option("--decode", flags->sizes.decode, "tokens to generate")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  cmd->add_option("--depth", flags->sizes.depth,
                  "tokens already in the state before prefill and decode")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 22));
  cmd->add_option("--batch", flags->batch, "sequences of the batched run; 1 leaves it out")
      ->check(CLI::Range(1, 32));
  cmd->add_option("--branch", flags->branch, "tokens of the branching prompt; 0 leaves it out")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 22));
  cmd->add_option("--repeat", flags->sizes.repeat, "runs of each figure; the median is printed")
      ->check(CLI::Range(1, 1000));
  cmd->add_flag("--json", flags->json, "print one JSON object");
  AddEnvironmentNames(*cmd);
  AddBenchCache(*cmd, run);
  cmd->callback([cmd, flags, &run] {
    if (!cmd->get_subcommands().empty()) return;
    run = [flags] { return ExitStatus(RunBench(*flags)); };
  });
}

}  // namespace cairn
