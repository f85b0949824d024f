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
  int64_t prefill = 512;
  int64_t decode = 32;
  int batch = 8;
  std::optional<int64_t> branch;  // default: kBranchTokens, or less in a shorter context
  int repeat = 3;
  bool json = false;
};

constexpr int64_t kBranchTokens = 4096;
constexpr double kBranchShare =
    0.9375;  // where the second prompt leaves the first: 30,000 of 32,000

// Random tokens, the same for the same seed.
std::vector<Token> RandomTokens(int64_t count, int vocab_size, uint64_t seed) {
  std::vector<Token> tokens(count);
  uint64_t x = seed * 0x9E3779B97F4A7C15ull + 1;
  for (Token& t : tokens) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    t = static_cast<Token>(x % static_cast<uint64_t>(vocab_size));
  }
  return tokens;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

struct Outcome {
  ReuseReport reuse;
  EndEvent end;
};

class Bench {
 public:
  Bench(const BenchFlags& flags, int64_t branch_tokens, std::shared_ptr<const Model> model,
        Engine& engine)
      : flags_(flags), branch_tokens_(branch_tokens), model_(std::move(model)), engine_(engine) {}

  // Tokens a second of one cold prompt.
  Result<double> Prefill() {
    return MedianOf([&](int i) -> Result<double> {
      ASSIGN_OR_RETURN(const Outcome o, RunOne(Prompt(flags_.prefill, i), 0, false));
      return static_cast<double>(flags_.prefill) / (o.end.prefill_ms / 1e3);
    });
  }

  // Tokens a second of `batch` sequences that decode at once.
  Result<double> Decode(int batch) {
    return MedianOf([&](int i) -> Result<double> {
      std::vector<std::shared_ptr<TokenStream>> streams;
      for (int b = 0; b < batch; ++b) {
        ASSIGN_OR_RETURN(auto s, engine_.Submit(MakeRequest(Prompt(16, 1000 * i + b),
                                                            flags_.decode + 1, false)));
        streams.push_back(std::move(s));
      }
      double longest_ms = 0;
      for (auto& s : streams) {
        ASSIGN_OR_RETURN(const Outcome o, Wait(*s));
        longest_ms = std::max(longest_ms, o.end.decode_ms);
      }
      return static_cast<double>(flags_.decode * batch) / (longest_ms / 1e3);
    });
  }

  struct Branch {
    double cold_seconds, branch_seconds;
    int64_t restore_point, replayed;
  };
  Result<Branch> MeasureBranch() {
    std::vector<Token> prompt = Prompt(branch_tokens_, 77);
    ASSIGN_OR_RETURN(const Outcome cold, RunOne(prompt, 0, true));
    const auto at = static_cast<size_t>(kBranchShare * static_cast<double>(branch_tokens_));
    prompt[at] = (prompt[at] + 1) % model_->info().vocab_size;
    ASSIGN_OR_RETURN(const Outcome branch, RunOne(prompt, 0, true));
    return Branch{cold.end.prefill_ms / 1e3, branch.end.prefill_ms / 1e3,
                  branch.reuse.restore_point, branch.reuse.replayed_tokens()};
  }

 private:
  std::vector<Token> Prompt(int64_t count, int seed) const {
    return RandomTokens(count, model_->info().vocab_size, seed + 1);
  }

  static Request MakeRequest(std::vector<Token> prompt, int64_t max_tokens, bool cache) {
    Request r;
    r.tail_begin = static_cast<int64_t>(prompt.size());
    r.prompt = std::move(prompt);
    r.raw = true;
    r.max_tokens = max_tokens;
    r.ignore_eos = true;
    r.cache_prompt = cache;
    return r;
  }

  Result<Outcome> RunOne(std::vector<Token> prompt, int64_t max_tokens, bool cache) {
    ASSIGN_OR_RETURN(auto stream,
                     engine_.Submit(MakeRequest(std::move(prompt), max_tokens, cache)));
    return Wait(*stream);
  }

  static Result<Outcome> Wait(TokenStream& stream) {
    Outcome outcome;
    while (true) {
      auto event = stream.Next(std::chrono::steady_clock::now() + std::chrono::minutes(60));
      if (!event) return Internal("[bench] no event from the engine in an hour");
      if (const auto* a = std::get_if<AdmittedEvent>(&*event)) outcome.reuse = a->reuse;
      if (const auto* e = std::get_if<EndEvent>(&*event)) {
        if (!e->error.ok()) return e->error;
        outcome.end = *e;
        return outcome;
      }
    }
  }

  template <typename Fn>
  Result<double> MedianOf(Fn fn) {
    std::vector<double> values;
    for (int i = 0; i < flags_.repeat; ++i) {
      ASSIGN_OR_RETURN(const double v, fn(i));
      values.push_back(v);
    }
    return Median(values);
  }

  const BenchFlags& flags_;
  const int64_t branch_tokens_;
  std::shared_ptr<const Model> model_;
  Engine& engine_;
};

std::string Rate(double tps) {
  char text[64];
  std::snprintf(text, sizeof text, "%.1f tokens/s", tps);
  return text;
}

void AddCheckpoint(const CheckpointFigures& c, Report& r) {
  char text[160];
  std::snprintf(text, sizeof text,
                "%s; save %.2f ms (%.1f GB/s), restore %.2f ms (%.1f GB/s), memcpy %.1f GB/s",
                FormatSize(c.state_bytes).c_str(), c.save_ms, c.save_gbps, c.restore_ms,
                c.restore_gbps, c.memcpy_gbps);
  r.Add("checkpoint",
        std::vector<std::pair<std::string, double>>{{"bytes", static_cast<double>(c.state_bytes)},
                                                    {"save_ms", c.save_ms},
                                                    {"save_gbps", c.save_gbps},
                                                    {"restore_ms", c.restore_ms},
                                                    {"restore_gbps", c.restore_gbps},
                                                    {"memcpy_gbps", c.memcpy_gbps}},
        "checkpoint", text);
}

Status RunBench(BenchFlags flags) {
  ASSIGN_OR_RETURN(LoadedModel loaded, LoadModelFile(flags.model));
  ASSIGN_OR_RETURN(EngineOptions options, ResolveEngineOptions(flags.model, flags.engine));
  const ModelInfo& info = loaded.model->info();
  const int64_t branch_tokens =
      flags.branch.value_or(std::min(kBranchTokens, info.context_length - 1));
  const int64_t longest = std::max({flags.prefill, branch_tokens, flags.decode + 17});
  if (longest >= info.context_length) {
    return InvalidArgument("[bench] " + std::to_string(longest) + " tokens, but the context is " +
                           std::to_string(info.context_length) +
                           "; give --context-length or smaller figures");
  }
  ThreadPool pool(options.threads);
  const Roof roof = MeasureRoof({options.cpu_level, &pool});
  ASSIGN_OR_RETURN(const CheckpointFigures checkpoint,
                   MeasureCheckpoint(*loaded.model, {options.cpu_level, &pool}));
  ASSIGN_OR_RETURN(auto engine, Engine::Create(loaded.model, options));
  Bench bench(flags, branch_tokens, loaded.model, *engine);
  ASSIGN_OR_RETURN(const double prefill, bench.Prefill());
  ASSIGN_OR_RETURN(const double decode, bench.Decode(1));
  std::optional<double> batch;
  if (flags.batch > 1) {
    ASSIGN_OR_RETURN(batch, bench.Decode(flags.batch));
  }
  std::optional<Bench::Branch> branch;
  if (branch_tokens > 0) {
    ASSIGN_OR_RETURN(branch, bench.MeasureBranch());
  }
  // Weights once, the state read and written once; the KV of these short prompts is next to
  // nothing.
  const double bytes = static_cast<double>(info.bytes_per_decode_token +
                                           2 * loaded.model->layout().recurrent_bytes());
  const double share = roof.read_gbps > 0 ? decode * bytes / (roof.read_gbps * 1e9) : 0;
  Report r;
  r.Add("model", info.name + " " + info.architecture + " " + info.quantization, "model");
  r.Add("cpu_level", std::string(CpuLevelName(options.cpu_level)), "CPU level");
  r.Add("threads", static_cast<int64_t>(options.threads), "threads");
  char text[160];
  std::snprintf(text, sizeof text, "%.0f GFLOP/s f32, %.0f GOP/s int8, %.1f GB/s read",
                roof.fma_gflops, roof.int8_gops, roof.read_gbps);
  r.Add("roof",
        std::vector<std::pair<std::string, double>>{{"fma_gflops", roof.fma_gflops},
                                                    {"int8_gops", roof.int8_gops},
                                                    {"read_gbps", roof.read_gbps}},
        "roof", text);
  r.Add("prefill_tokens", flags.prefill, "prefill tokens");
  r.Add("prefill_tps", prefill, "prefill", Rate(prefill));
  r.Add("decode_tps", decode, "decode", Rate(decode));
  r.Add("bytes_per_token", static_cast<int64_t>(bytes), "bytes read per decoded token",
        FormatSize(static_cast<uint64_t>(bytes)));
  std::snprintf(text, sizeof text, "%.0f %%", 100 * share);
  r.Add("decode_bandwidth_share", share, "share of read bandwidth", text);
  if (batch) {
    r.Add("batch", static_cast<int64_t>(flags.batch), "batch");
    r.Add("batch_decode_tps", *batch, "batched decode, in all", Rate(*batch));
  }
  if (branch) {
    std::snprintf(
        text, sizeof text, "cold %.3f s, changed at %.2f %%: %.3f s (restored %lld, replayed %lld)",
        branch->cold_seconds, 100 * kBranchShare, branch->branch_seconds,
        static_cast<long long>(branch->restore_point), static_cast<long long>(branch->replayed));
    r.Add("branch",
          std::vector<std::pair<std::string, double>>{
              {"prompt_tokens", static_cast<double>(branch_tokens)},
              {"cold_seconds", branch->cold_seconds},
              {"branch_seconds", branch->branch_seconds},
              {"restore_point", static_cast<double>(branch->restore_point)},
              {"replayed_tokens", static_cast<double>(branch->replayed)}},
          "branch of " + std::to_string(branch_tokens), text);
  }
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
  cmd->add_option("--prefill-step-size", flags->engine.prefill_step_size,
                  "tokens between grid checkpoints")
      ->check(CLI::Range(int64_t{16}, int64_t{1} << 24));
  cmd->add_option("--prefill", flags->prefill, "tokens of the cold prompt")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 22));
  cmd->add_option("--decode", flags->decode, "tokens to generate")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  cmd->add_option("--batch", flags->batch, "sequences of the batched run; 1 leaves it out")
      ->check(CLI::Range(1, 32));
  cmd->add_option("--branch", flags->branch, "tokens of the branching prompt; 0 leaves it out")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 22));
  cmd->add_option("--repeat", flags->repeat, "runs of each figure; the median is printed")
      ->check(CLI::Range(1, 1000));
  cmd->add_flag("--json", flags->json, "print one JSON object");
  AddEnvironmentNames(*cmd);
  cmd->callback([flags, &run] { run = [flags] { return ExitStatus(RunBench(*flags)); }; });
}

}  // namespace cairn
