// The API: which route does what, who may call it, and what is said while the model loads, while
// shutting down and after a fault.
// Owns: the loaded service and the workers. Threads: the IO thread, but for the constructor and
// Close.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "server/access.h"
#include "server/api_reply.h"
#include "server/serve_context.h"

namespace cairn {

struct ApiOptions {
  AccessOptions access;
  RequestDefaults defaults;
  std::string alias;              // the model's id; empty: its name
  double request_timeout_ms = 0;  // 0: none
  size_t jobs_max = 1024;         // requests that wait to be parsed and encoded
};

class ApiServer {
 public:
  // http and metrics outlive this.
  ApiServer(HttpServer& http, Metrics& metrics, ApiOptions options);

  // The model is there: from now on its routes answer.
  void Serve(LoadedService service);
  void Handle(std::shared_ptr<HttpRequest> request, std::shared_ptr<HttpReply> http);
  void OnTick();

  void Drain();      // new requests get 503, running ones go on
  void CancelAll();  // those too
  // Ends workers and engine. REQUIRES: the IO thread runs no more.
  void Close();

  const std::string& model_id() const { return context_->model_id; }

 private:
  using Clock = std::chrono::steady_clock;
  using Action = void (ApiServer::*)(std::shared_ptr<HttpRequest>, ApiReply);
  enum class Match { kExact, kPrefix };
  struct Entry {
    const char* method;
    const char* path;  // kPrefix: what the path begins with
    Match match;
    Access access;
    bool needs_model;
    Action action;
  };
  static const std::vector<Entry>& Table();

  void Refuse(const HttpRequest& request, ApiReply& reply, const std::string& allowed_methods);
  void Index(std::shared_ptr<HttpRequest> request, ApiReply reply);
  void Health(std::shared_ptr<HttpRequest> request, ApiReply reply);
  void MetricsText(std::shared_ptr<HttpRequest> request, ApiReply reply);
  void Models(std::shared_ptr<HttpRequest> request, ApiReply reply);
  void Model(std::shared_ptr<HttpRequest> request, ApiReply reply);
  void Props(std::shared_ptr<HttpRequest> request, ApiReply reply);
  void Chat(std::shared_ptr<HttpRequest> request, ApiReply reply);
  void Completions(std::shared_ptr<HttpRequest> request, ApiReply reply);
  void Tokenize(std::shared_ptr<HttpRequest> request, ApiReply reply);
  void Detokenize(std::shared_ptr<HttpRequest> request, ApiReply reply);
  void ApplyTemplate(std::shared_ptr<HttpRequest> request, ApiReply reply);
  void Slots(std::shared_ptr<HttpRequest> request, ApiReply reply);
  void ShowCache(std::shared_ptr<HttpRequest> request, ApiReply reply);
  void Explain(std::shared_ptr<HttpRequest> request, ApiReply reply);
  void Clear(std::shared_ptr<HttpRequest> request, ApiReply reply);
  void Drop(std::shared_ptr<HttpRequest> request, ApiReply reply);
  void Pin(std::shared_ptr<HttpRequest> request, ApiReply reply);
  void NotYet(std::shared_ptr<HttpRequest> request, ApiReply reply);
  void OldCompletion(std::shared_ptr<HttpRequest> request, ApiReply reply);

  const ApiOptions options_;
  std::unique_ptr<ServeContext> context_;
  bool draining_ = false;
  // For /health: when the engine last got on, or had nothing to do.
  uint64_t steps_seen_ = 0;
  Clock::time_point progress_at_ = Clock::now();
};

}  // namespace cairn
