#include "flags.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "base/bytes.h"
#include "base/env.h"
#include "base/log.h"

namespace cairn {
namespace {

constexpr int kThreadsMax = 256;
constexpr double kBudgetShareOfMemory = 0.9;  // --memory-budget where the user says nothing
// What a step takes during a prompt: at most twice what it took before, with room for one that
// takes longer than foreseen. A step below 33 ms is 30 tokens a second, faster than anyone reads;
// beside one stream of a small model a prompt would otherwise get a third of the machine. A sixth
// of the time is the prompt's in any case, or one beside streams that have grown long would starve.
constexpr StepTarget kDefaultStepTarget = {.factor = 1.55, .floor_ms = 33, .least = 1.2};
constexpr double kCacheShareOfMemory = 0.25;  // --prompt-cache-bytes where the user says nothing

constexpr std::string_view kAutoStride = "auto";

Status NotInThisVersion(const std::string& flag) {
  return Unsupported("[flags] " + flag + ": not in this version");
}

}  // namespace

void AddRealOption(CLI::App& app, const std::string& name, double& value, double min, double max,
                   const std::string& description) {
  // CLI::Range lets NaN pass.
  app.add_option(name, value, description)
      ->check(CLI::Range(min, max))
      ->check([](const std::string& text) {
        const bool is_nan = std::isnan(std::strtod(text.c_str(), nullptr));
        return is_nan ? "Value " + text + " is not a number" : std::string();
      });
}

void AddModelFlags(CLI::App& app, ModelFlags& f) {
  app.add_option("--model", f.model,
                 "GGUF file, or Hugging Face or MLX directory (default: the bundled model)");
  app.add_option("--threads", f.threads, "compute threads (default: the CPUs of this process)")
      ->check(CLI::Range(1, kThreadsMax));
  app.add_option("--cpu-level", f.cpu_level,
                 "scalar, avx2 or avx512 (default: the best of this CPU)");
  app.add_option("--context-length", f.context_length, "tokens of context (default: the model's)")
      ->check(CLI::Range(int64_t{16}, int64_t{1} << 24));
  app.add_option("--kv-type", f.kv_type, "f16, f32 or q8_0");
  app.add_option("--log-level", f.log_level, "debug, info, warning, error or off");
}

void AddStrideFlag(CLI::App& app, std::optional<int64_t>& stride) {
  const CLI::Range range(int64_t{16}, int64_t{1} << 24);
  app.add_option_function<std::string>(
         "--prefill-step-size",
         [&stride](const std::string& text) {
           int64_t tokens = 0;
           const bool is_number = text != kAutoStride && CLI::detail::lexical_cast(text, tokens);
           stride = is_number ? std::optional(tokens) : std::nullopt;
         },
         "tokens between grid checkpoints, or auto: 2048, less where they are small")
      ->default_str(std::to_string(*stride))
      ->check(
          [range](std::string text) { return text == kAutoStride ? std::string() : range(text); });
}

void AddEngineFlags(CLI::App& app, EngineFlags& f) {
  AddStrideFlag(app, f.prefill_step_size);
  app.add_option("--prompt-cache-size", f.prompt_cache_size,
                 "retained paths; 0 switches the cache off")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40));
  app.add_option(
      "--prompt-cache-bytes", f.prompt_cache_bytes,
      "bytes of the prompt cache, e.g. 2GiB; 0 switches it off (default: 25 % of memory)");
  app.add_option("--cache-policy", f.cache_policy, "value, lru or lru-type");
  app.add_option("--decode-concurrency", f.decode_concurrency, "sequences at once")
      ->check(CLI::Range(1, 1024));
  app.add_option("--prompt-concurrency", f.prompt_concurrency, "of them in prefill")
      ->check(CLI::Range(1, 1024));
  app.add_option("--queue-limit", f.queue_limit, "waiting requests before 429")
      ->check(CLI::Range(0, 1 << 20));
  app.add_option("--memory-budget", f.memory_budget,
                 "bytes of all memory: weights, sequences, cache and scratch (default: 90 % of the "
                 "machine's or the cgroup's)");
  AddRealOption(app, "--target-inter-token-ms", f.target_inter_token_ms, 0, 1e6,
                "while streams run, prompts are cut so that a step takes no longer; 0: about twice "
                "what a step of the streams alone takes");
  app.add_option("--cache-dir", f.cache_dir, "not in this version");
}

void AddSamplingFlags(CLI::App& app, SamplingFlags& f) {
  AddRealOption(app, "--temp", f.temp, 0, 100, "default temperature");
  AddRealOption(app, "--top-p", f.top_p, 0, 1, "default top_p");
  app.add_option("--top-k", f.top_k, "default top_k, 0 = all")->check(CLI::Range(0, 1 << 24));
  AddRealOption(app, "--min-p", f.min_p, 0, 1, "default min_p");
  app.add_option("--max-tokens", f.max_tokens,
                 "default and upper limit of generated tokens (default: the rest of the context)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24));
  app.add_option("--chat-template", f.chat_template,
                 "template text, or the path of a file that holds it");
  app.add_option("--chat-template-args", f.chat_template_args,
                 "JSON object handed to the template");
}

void AddEnvironmentNames(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    if (option->get_lnames().empty() || option->get_lnames()[0] == "help") continue;
    std::string name = "CAIRN_" + option->get_lnames()[0];
    for (char& c : name)
      c = c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    option->envname(name);
  }
}

Result<CpuLevel> ResolveCpuLevel(const ModelFlags& f) {
  const auto levels = SupportedCpuLevels();
  if (f.cpu_level.empty()) return levels.back();
  const auto level = ParseCpuLevel(f.cpu_level);
  if (!level)
    return InvalidArgument("[flags] --cpu-level " + f.cpu_level +
                           ", wanted scalar, avx2 or avx512");
  if (std::find(levels.begin(), levels.end(), *level) == levels.end()) {
    return InvalidArgument("[flags] --cpu-level " + f.cpu_level + ", but this CPU has at most " +
                           CpuLevelName(levels.back()));
  }
  return *level;
}

Result<KvType> ResolveKvType(const ModelFlags& f) {
  if (f.kv_type == "f16") return KvType::kF16;
  if (f.kv_type == "f32") return KvType::kF32;
  if (f.kv_type == "q8_0") return KvType::kQ8_0;
  return InvalidArgument("[flags] --kv-type " + f.kv_type + ", wanted f16, f32 or q8_0");
}

int ResolveThreads(const ModelFlags& f) {
  return f.threads > 0 ? f.threads : std::min(AvailableCpuCount(), kThreadsMax);
}

Result<EngineOptions> ResolveEngineOptions(const ModelFlags& model, const EngineFlags& f) {
  if (!f.cache_dir.empty()) return NotInThisVersion("--cache-dir");
  EngineOptions o;
  ASSIGN_OR_RETURN(o.cpu_level, ResolveCpuLevel(model));
  o.threads = ResolveThreads(model);
  if (f.prefill_step_size) o.cache.stride = *f.prefill_step_size;
  o.cache.paths_max = f.prompt_cache_size;
  o.cache.bytes_max =
      static_cast<uint64_t>(kCacheShareOfMemory * static_cast<double>(AvailableMemoryBytes()));
  if (f.prompt_cache_bytes) {
    auto bytes = ParseSize(*f.prompt_cache_bytes);
    if (!bytes.ok())
      return InvalidArgument("[flags] --prompt-cache-bytes: " + bytes.status().message());
    o.cache.bytes_max = *bytes;
  }
  if (f.cache_policy == "lru") {
    o.cache.policy = CachePolicy::kLru;
  } else if (f.cache_policy == "lru-type") {
    o.cache.policy = CachePolicy::kLruType;
  } else if (f.cache_policy == "value") {
    o.cache.policy = CachePolicy::kValue;
  } else {
    return InvalidArgument("[flags] --cache-policy " + f.cache_policy +
                           ", wanted value, lru or lru-type");
  }
  o.memory_budget =
      static_cast<uint64_t>(kBudgetShareOfMemory * static_cast<double>(AvailableMemoryBytes()));
  if (f.memory_budget) {
    auto bytes = ParseSize(*f.memory_budget);
    if (!bytes.ok()) return InvalidArgument("[flags] --memory-budget: " + bytes.status().message());
    o.memory_budget = *bytes;
  }
  o.step_target = f.target_inter_token_ms > 0
                      ? StepTarget{.factor = 0, .floor_ms = f.target_inter_token_ms}
                      : kDefaultStepTarget;
  o.decode_concurrency = f.decode_concurrency;
  o.prompt_concurrency = f.prompt_concurrency;
  o.queue_limit = f.queue_limit;
  o.logit_rows_max = std::max(o.logit_rows_max, f.decode_concurrency);
  o.step_rows_max = std::max(o.step_rows_max, f.decode_concurrency);
  return o;
}

Result<std::string> ResolveModelPath(const ModelFlags& f) {
  namespace fs = std::filesystem;
  std::error_code ec;
  if (!f.model.empty()) {
    if (!fs::exists(f.model, ec))
      return NotFound("[flags] --model " + f.model + ": no such file or directory");
    return f.model;
  }
  const fs::path file = fs::path("models") / "trailguide" / "trailguide.gguf";
  std::vector<fs::path> places;
  const fs::path self = fs::read_symlink("/proc/self/exe", ec);
  // Beside an installed binary, then upwards from a build tree, then where it was built.
  places.push_back(self.parent_path().parent_path() / "share" / "cairn" / file);
  for (fs::path dir = self.parent_path(); dir.has_relative_path(); dir = dir.parent_path())
    places.push_back(dir / file);
  places.push_back(fs::path(CAIRN_SOURCE_DIR) / file);
  for (const fs::path& p : places) {
    if (fs::exists(p, ec)) return p.string();
  }
  return NotFound("[flags] the bundled model " + file.string() +
                  " was not found; name one with --model FILE");
}

}  // namespace cairn
