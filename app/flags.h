// Command-line flags shared by the subcommands, as plain data, and the one place that turns them
// into CLI11 options. Every flag also has an environment form: --prefill-step-size is
// CAIRN_PREFILL_STEP_SIZE. Errors: one line, exit 2.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"
#include "kernels/attention.h"

namespace CLI {
class App;
}

namespace cairn {

// Where the weights are and how they run.
struct ModelFlags {
  std::string model;           // empty: the bundled model
  int threads = 0;             // 0: the CPUs of this process
  std::string cpu_level;       // empty: the best of this CPU
  int64_t context_length = 0;  // 0: the model's declared length
  std::string kv_type = "f16";
  std::string log_level = "info";
};

// Prompt cache and scheduler.
struct EngineFlags {
  std::optional<int64_t> prefill_step_size = 2048;  // empty: "auto", by the layout (cache/stride.h)
  std::optional<int64_t> prompt_cache_size;
  std::optional<std::string> prompt_cache_bytes;
  std::string cache_policy = "value";
  int decode_concurrency = 32;
  int prompt_concurrency = 8;
  int queue_limit = 512;
  std::optional<std::string> memory_budget;  // empty: a share of the machine's or cgroup's memory
  double target_inter_token_ms = 0;          // 0: by what a step of the streams alone takes
  std::string cache_dir;                     // not in this version
};

// Defaults for requests that do not say.
struct SamplingFlags {
  double temp = 0.0;
  double top_p = 1.0;
  int top_k = 0;
  double min_p = 0.0;
  int64_t max_tokens = -1;  // -1: the rest of the context
  std::string chat_template;
  std::string chat_template_args;
};

// An option that takes a number from min to max.
void AddRealOption(CLI::App& app, const std::string& name, double& value, double min, double max,
                   const std::string& description);

void AddModelFlags(CLI::App& app, ModelFlags& flags);
// --prefill-step-size: a number of tokens, or "auto".
void AddStrideFlag(CLI::App& app, std::optional<int64_t>& stride);
void AddEngineFlags(CLI::App& app, EngineFlags& flags);
void AddSamplingFlags(CLI::App& app, SamplingFlags& flags);
// Gives every option of `app` its environment form. Call after all options were added.
void AddEnvironmentNames(CLI::App& app);

// Checked forms. Errors name the flag, what it got and what was wanted.
Result<CpuLevel> ResolveCpuLevel(const ModelFlags& flags);
Result<KvType> ResolveKvType(const ModelFlags& flags);
int ResolveThreads(const ModelFlags& flags);
// Engine options but for what comes from the model: AddModelOptions (load_model.h).
Result<EngineOptions> ResolveEngineOptions(const ModelFlags& model, const EngineFlags& engine);
// --model or the bundled model's path. Errors: kNotFound.
Result<std::string> ResolveModelPath(const ModelFlags& flags);

}  // namespace cairn
