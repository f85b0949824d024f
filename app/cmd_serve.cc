// cairn serve: the HTTP server. The port is open before the model is loaded; until then /health
// says so.

#include <sys/resource.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "base/env.h"
#include "base/log.h"
#include "cache/stride.h"
#include "commands.h"
#include "flags.h"
#include "load_model.h"
#include "server/api_server.h"
#include "server/http_server.h"
#include "server/metrics.h"
#include "server/openai_json.h"
#include "text_file.h"

namespace cairn {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kKeyBytesMax = 4096;
constexpr size_t kKeysMax = 1024;
constexpr size_t kKeyFileBytesMax = size_t{8} << 20;
constexpr size_t kConfigBytesMax = size_t{1} << 20;
constexpr rlim_t kFilesWanted = 4096;
constexpr uint64_t kProcessGrowth = uint64_t{4} << 20;
constexpr uint64_t kBodiesShareOfBudget = 16;
// After CancelAll: for the last words to reach their readers.
constexpr auto kLastWords = std::chrono::seconds(3);

struct ServeFlags {
  ModelFlags model;
  EngineFlags engine;
  SamplingFlags sampling;
  std::string host = "127.0.0.1";
  int port = 8080;
  std::string allowed_origins = "*";
  std::optional<std::string> api_key, admin_key;
  std::string api_key_file, alias;
  double request_timeout = 0;
  std::string max_body_bytes = "8MiB";
  double drain_seconds = 10;
  bool metrics = true;
  std::string log_format = "text";
};

// One key a line; empty lines and lines that begin with # are none.
Result<std::vector<std::string>> ReadKeys(const ServeFlags& flags) {
  std::vector<std::string> keys;
  if (flags.api_key) keys.push_back(*flags.api_key);
  if (!flags.api_key_file.empty()) {
    ASSIGN_OR_RETURN(std::string text,
                     ReadTextFile("--api-key-file", flags.api_key_file, kKeyFileBytesMax));
    std::istringstream file(std::move(text));
    for (std::string line; std::getline(file, line);) {
      while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
      if (!line.empty() && line[0] != '#') keys.push_back(line);
    }
    if (keys.empty())
      return InvalidArgument("[flags] --api-key-file " + flags.api_key_file +
                             ": no key, wanted one a line");
  }
  for (const std::string& key : keys) {
    if (key.empty()) return InvalidArgument("[flags] --api-key: empty, wanted a key");
    if (key.size() > kKeyBytesMax || keys.size() > kKeysMax)
      return InvalidArgument("[flags] API keys: too long or too many");
  }
  return keys;
}

std::vector<std::string> SplitAtCommas(const std::string& text) {
  std::vector<std::string> parts;
  size_t begin = 0;
  while (begin <= text.size()) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const size_t first = text.find_first_not_of(' ', begin);
    const size_t last = end == 0 ? std::string::npos : text.find_last_not_of(' ', end - 1);
    if (first < end && last != std::string::npos && last >= first)
      parts.push_back(text.substr(first, last - first + 1));
    begin = end + 1;
  }
  return parts;
}

Result<ApiOptions> ResolveApiOptions(const ServeFlags& flags) {
  ApiOptions o;
  ASSIGN_OR_RETURN(o.access.api_keys, ReadKeys(flags));
  if (flags.admin_key && flags.admin_key->empty())
    return InvalidArgument("[flags] --admin-key: empty, wanted a key");
  o.access.admin_key = flags.admin_key.value_or("");
  o.access.allowed_origins = SplitAtCommas(flags.allowed_origins);
  o.alias = flags.alias;
  o.request_timeout_ms = flags.request_timeout * 1e3;
  SamplingParams& s = o.defaults.sampling;
  s.temperature = static_cast<float>(flags.sampling.temp);
  s.top_p = static_cast<float>(flags.sampling.top_p);
  s.top_k = flags.sampling.top_k;
  s.min_p = static_cast<float>(flags.sampling.min_p);
  if (flags.sampling.max_tokens > 0) o.defaults.max_tokens = flags.sampling.max_tokens;
  return o;
}

// For tests from outside: CAIRN_TEST_FAULT=step:N makes the engine's N-th step throw, fatal:N the
// recovery from that too.
TestFaults PlantedFaults() {
  TestFaults faults;
  const char* text = std::getenv("CAIRN_TEST_FAULT");
  if (text == nullptr) return faults;
  const std::string plant = text;
  faults.recovery_throws = plant.starts_with("fatal:");
  if (faults.recovery_throws || plant.starts_with("step:"))
    faults.throwing_step = std::strtoull(plant.c_str() + plant.find(':') + 1, nullptr, 10);
  return faults;
}

void LogGrid(const StateLayout& layout, const CacheOptions& cache) {
  if (layout.trimmable() || !cache.enabled()) return;
  std::string line = "[serve] a grid checkpoint of " + FormatSize(layout.buffer_bytes()) +
                     " every " + std::to_string(cache.stride) + " tokens";
  if (layout.kv_bytes_per_token() > 0) {
    char share[48];
    std::snprintf(share, sizeof share, ", %.3g %% of their keys and values",
                  100 * GridShare(layout, cache.stride));
    line += share;
  }
  LogInfo(line);
}

Result<LoadedService> Load(const ServeFlags& flags, EngineOptions options,
                           const EngineObserver& observer) {
  ASSIGN_OR_RETURN(LoadedModel loaded,
                   LoadModelFile(flags.model, {flags.sampling.chat_template,
                                               flags.sampling.chat_template_args}));
  if (loaded.template_source.empty()) {
    LogWarning(
        "[template] the model has no chat template: chats are written as ChatML; "
        "--chat-template names another");
    loaded.template_source = kDefaultChatTemplate;
  }
  AddModelOptions(loaded, flags.engine, options);
  LogGrid(loaded.model->layout(), options.cache);
  options.faults = PlantedFaults();
  // What the process holds beside the weights counts against --memory-budget as it is now, and what
  // connections, requests and the allocator will add.
  const uint64_t resident = ResidentBytes(), weights = loaded.model->info().weight_bytes;
  options.other_bytes = (resident > weights ? resident - weights : 0) + kProcessGrowth;
  options.resident_bytes = ResidentBytes;
  LoadedService service;
  ASSIGN_OR_RETURN(service.engine, Engine::Create(loaded.model, options, observer));
  const ModelInfo& info = loaded.model->info();
  const StateLayout& layout = loaded.model->layout();
  service.model = {.name = info.name,
                   .architecture = info.architecture,
                   .quantization = info.quantization,
                   .path = loaded.path,
                   .context_length = info.context_length,
                   .trained_context_length = info.trained_context_length,
                   .parameter_count = info.parameter_count,
                   .vocab_size = info.vocab_size,
                   .weight_bytes = info.weight_bytes,
                   .state_bytes = layout.state_bytes(),
                   .kv_bytes_per_token = layout.kv_bytes_per_token(),
                   .trimmable = layout.trimmable()};
  service.tokenizer = std::move(loaded.tokenizer);
  service.prompts = std::move(loaded.prompts);
  service.template_source = std::move(loaded.template_source);
  return service;
}

Result<LoadedService> LoadSafely(const ServeFlags& flags, const EngineOptions& options,
                                 const EngineObserver& observer) {
  try {
    return Load(flags, options, observer);
  } catch (const std::exception& e) {  // out of memory, most likely
    return ResourceExhausted(std::string("[serve] loading: ") + e.what());
  }
}

// Each connection is a file descriptor; the usual soft limit of 1,024 is less than we may hold.
void RaiseFileLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= kFilesWanted) return;
  limit.rlim_cur = std::min<rlim_t>(kFilesWanted, limit.rlim_max);
  (void)setrlimit(RLIMIT_NOFILE, &limit);  // without it, fewer connections at once
}

void PrintReady(const ServeFlags& flags, const HttpServer& http, const ApiServer& api) {
  const bool any = flags.host == "0.0.0.0" || flags.host == "::";
  std::string host = any ? "127.0.0.1" : flags.host;
  if (host.find(':') != std::string::npos) host = "[" + host + "]";
  const std::string url = "http://" + host + ":" + std::to_string(http.port());
  const bool has_key = flags.api_key || !flags.api_key_file.empty();
  std::printf(
      "cairn serves %s on %s\n"
      "  curl %s/v1/chat/completions %s-H 'Content-Type: application/json' "
      "-d '{\"messages\":[{\"role\":\"user\",\"content\":\"Hello!\"}]}'\n",
      api.model_id().c_str(), url.c_str(), url.c_str(),
      has_key ? "-H \"Authorization: Bearer $API_KEY\" " : "");
  std::fflush(stdout);
}

// From the first signal to the end.
class Shutdown {
 public:
  Shutdown(HttpServer& http, ApiServer& api, double drain_seconds)
      : http_(http), api_(api), drain_seconds_(drain_seconds) {}

  void OnSignal(bool is_loaded) {
    if (begun_) std::_Exit(1);
    begun_ = true;
    if (!is_loaded) std::_Exit(0);  // the loader cannot be asked to stop, and holds nothing
    LogInfo("[serve] shutting down; a second signal ends at once");
    http_.StopAccepting();
    api_.Drain();
    cancel_at_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                    std::chrono::duration<double>(drain_seconds_));
  }
  // The engine cannot go on: whoever waits hears it, then the process ends. Better no port than one
  // with nobody behind it.
  void OnFault() {
    if (cancelled_) return;
    LogError("[serve] the engine failed; ending");
    begun_ = cancelled_ = true;
    http_.StopAccepting();
    api_.Drain();
    cancel_at_ = Clock::now();
  }
  void OnTick() {
    if (!begun_) return;
    if (http_.active_requests() == 0) return http_.Stop();
    if (!cancelled_ && Clock::now() >= cancel_at_) {
      cancelled_ = true;
      api_.CancelAll();
    }
    if (cancelled_ && Clock::now() >= cancel_at_ + kLastWords) http_.Stop();
  }

 private:
  HttpServer& http_;
  ApiServer& api_;
  const double drain_seconds_;
  bool begun_ = false, cancelled_ = false;
  Clock::time_point cancel_at_;
};

Status Serve(const ServeFlags& flags) {
  ASSIGN_OR_RETURN(const LogFormat log_format, ParseLogFormat(flags.log_format));
  SetLogFormat(log_format);
  ASSIGN_OR_RETURN(const LogLevel log_level, ParseLogLevel(flags.model.log_level));
  SetLogLevel(log_level);
  ASSIGN_OR_RETURN(const EngineOptions engine_options,
                   ResolveEngineOptions(flags.model, flags.engine));
  ASSIGN_OR_RETURN(const ApiOptions api_options, ResolveApiOptions(flags));
  RETURN_IF_ERROR(ResolveModelPath(flags.model).status());
  const std::string& template_args = flags.sampling.chat_template_args;
  if (!template_args.empty() && !IsJsonObject(template_args))
    return InvalidArgument("[flags] --chat-template-args " + template_args.substr(0, 80) +
                           ", wanted a JSON object");
  HttpLimits limits;
  const auto body_bytes = ParseSize(flags.max_body_bytes);
  if (!body_bytes.ok())
    return InvalidArgument("[flags] --max-body-bytes: " + body_bytes.status().message());
  if (*body_bytes == 0) return InvalidArgument("[flags] --max-body-bytes 0, wanted at least 1");
  limits.body_bytes_max = *body_bytes;
  // What requests in hand hold is no part of what the cache can give way to, so it is bounded by
  // the budget too.
  limits.all_bodies_bytes_max =
      std::max(std::min<uint64_t>(limits.all_bodies_bytes_max,
                                  engine_options.memory_budget / kBodiesShareOfBudget),
               4 * limits.body_bytes_max);
  RaiseFileLimit();
  std::signal(SIGPIPE, SIG_IGN);  // who read our log may go; the clients stay
  ASSIGN_OR_RETURN(auto http, HttpServer::Listen(flags.host, flags.port, limits));
  if (!http->is_loopback() && api_options.access.api_keys.empty())
    LogWarning("[serve] listening on " + flags.host +
               " without --api-key: anyone who reaches it can use it");
  Metrics metrics;
  ApiServer api(*http, metrics, api_options);
  Shutdown shutdown(*http, api, flags.drain_seconds);
  Status load_status;
  std::atomic<bool> engine_failed{false};
  EngineObserver observer = metrics.Observer();
  observer.fatal = [&engine_failed](const Status&) { engine_failed = true; };
  bool is_loaded = false;  // IO thread
  http->OnSignal([&] { shutdown.OnSignal(is_loaded); });
  http->OnTick([&] {
    api.OnTick();
    if (engine_failed) shutdown.OnFault();
    shutdown.OnTick();
  });
  std::thread loader([&] {
    auto loaded =
        std::make_shared<Result<LoadedService>>(LoadSafely(flags, engine_options, observer));
    http->Post([&, loaded] {
      if (!loaded->ok()) {
        load_status = loaded->status();
        return http->Stop();
      }
      is_loaded = true;
      api.Serve(std::move(*loaded).value());
      PrintReady(flags, *http, api);
    });
  });
  http->Run([&](auto request, auto reply) { api.Handle(std::move(request), std::move(reply)); });
  loader.join();
  api.Close();
  if (engine_failed) return Internal("[serve] the engine failed");
  return load_status;
}

void AddServerFlags(CLI::App& app, ServeFlags& f) {
  app.add_option("--host", f.host, "address to listen on");
  app.add_option("--port", f.port, "port; 0: any free one")->check(CLI::Range(0, 65535));
  app.add_option("--allowed-origins", f.allowed_origins,
                 "origins that browsers may call from, separated by commas; * = any");
  app.add_option("--api-key", f.api_key, "key that clients must send");
  app.add_option("--api-key-file", f.api_key_file, "file with one key a line");
  app.add_option("--admin-key", f.admin_key, "key for /v1/cache and /slots");
  app.add_option("--alias", f.alias, "the model's id (default: its name)");
  AddRealOption(app, "--request-timeout", f.request_timeout, 0, 1e7,
                "seconds a request may take from its submission; 0 = no limit");
  app.add_option("--max-body-bytes", f.max_body_bytes, "largest request body");
  AddRealOption(app, "--drain-seconds", f.drain_seconds, 0, 1e6,
                "after SIGTERM, running requests may take so long");
  app.add_option("--log-format", f.log_format, "text or json, one object a line");
  app.add_flag("--metrics", f.metrics, "accepted; /metrics is always on");
}

// Flags from a file (TOML or INI; "port = 8080", names as on the command line, a section [serve] is
// allowed). What the command line or the environment says wins. Errors are CLI11's: exit 2.
void ReadConfig(CLI::App& app, const std::string& path) {
  const Result<std::string> text = ReadTextFile("--config", path, kConfigBytesMax);
  if (!text.ok()) throw CLI::ConfigError(text.status().message());
  std::istringstream lines(*text);
  for (const CLI::ConfigItem& item : CLI::ConfigTOML().from_config(lines)) {
    const bool here = item.parents.empty() || item.parents == std::vector<std::string>{"serve"};
    if (here && (item.name == "++" || item.name == "--")) continue;  // begin and end of a section
    CLI::Option* option = here ? app.get_option_no_throw("--" + item.name) : nullptr;
    if (option == nullptr || item.name == "config" || item.name == "help")
      throw CLI::ConfigError("--config " + path + ": unknown key " + item.fullname());
    if (option->count() > 0) continue;
    option->add_result(item.inputs);
    option->run_callback();
  }
}

}  // namespace

void AddServe(CLI::App& app, RunCommand& run) {
  auto flags = std::make_shared<ServeFlags>();
  CLI::App* cmd = app.add_subcommand("serve", "the HTTP server (OpenAI-compatible)");
  AddModelFlags(*cmd, flags->model);
  AddEngineFlags(*cmd, flags->engine);
  AddSamplingFlags(*cmd, flags->sampling);
  AddServerFlags(*cmd, *flags);
  auto config = std::make_shared<std::string>();
  cmd->add_option("--config", *config, "file with flags, one \"name = value\" a line");
  AddEnvironmentNames(*cmd);
  cmd->callback([flags, config, cmd, &run] {
    if (!config->empty()) ReadConfig(*cmd, *config);
    run = [flags] { return ExitStatus(Serve(*flags)); };
  });
}

}  // namespace cairn
