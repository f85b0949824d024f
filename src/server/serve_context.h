// What the handlers of all routes share. Threads: written on the IO thread only; `text`, `model`
// and `engine` do not change after loading and are read by the worker too.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <random>
#include <string>

#include "engine/engine.h"
#include "server/http_server.h"
#include "server/metrics.h"
#include "server/openai_json.h"
#include "server/openai_types.h"
#include "server/work_queue.h"
#include "text/prompt_builder.h"
#include "text/tokenizer.h"

namespace cairn {

// A loaded model with its text side and its engine.
struct LoadedService {
  std::unique_ptr<Engine> engine;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const PromptBuilder> prompts;
  std::string template_source;
  ServedModel model;
};

struct ServeContext {
  ServeContext(HttpServer& server, Metrics& figures, size_t jobs_max)
      : http(server), metrics(figures), quick_work(jobs_max), work(jobs_max) {}

  // Small bodies have a worker of their own: one prompt of megabytes takes seconds to encode.
  WorkQueue& WorkFor(size_t body_bytes) { return body_bytes <= kQuickBytesMax ? quick_work : work; }

  std::string RandomDigits() {
    char digits[20];
    std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(random()));
    return digits;
  }

  HttpServer& http;
  Metrics& metrics;
  RequestDefaults defaults;
  double request_timeout_ms = 0;  // 0: none
  std::string model_id;
  int64_t created = 0;                             // unix seconds of the load
  bool has_think_tags = false;                     // the template uses <think>
  LoadedService loaded;                            // engine == nullptr: still loading
  std::mt19937_64 random{std::random_device{}()};  // ids, and seeds where the client gave none
  std::atomic<int64_t> preparing{0};  // generation requests between HTTP and the engine's queue
  WorkQueue quick_work, work;         // last: their jobs use the rest

 private:
  static constexpr size_t kQuickBytesMax = size_t{64} << 10;
};

}  // namespace cairn
