#include "server/api_server.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "server/admin_handler.h"
#include "server/chat_handler.h"
#include "server/openai_json.h"

namespace cairn {
namespace {

// A step is a fraction of a second to some seconds; an engine that finishes none for so long while
// it has work is stuck.
constexpr auto kStuckAfter = std::chrono::seconds(120);

ApiError MakeError(int status, std::string type, std::string code, std::string message) {
  ApiError e;
  e.http_status = status;
  e.type = std::move(type);
  e.code = std::move(code);
  e.message = std::move(message);
  return e;
}

HttpHeaders::value_type RetrySoon() { return {"Retry-After", "1"}; }

ApiError Loading() {
  ApiError e = MakeError(503, "unavailable_error", "loading_model", "loading model");
  e.retry_after_s = 1;
  return e;
}

// The {id} of /v1/cache/{id}/pin; absent: another path.
std::optional<std::string> PinId(const std::string& path) {
  constexpr std::string_view kBegin = "/v1/cache/", kEnd = "/pin";
  if (!path.ends_with(kEnd) || path.size() <= kBegin.size() + kEnd.size()) return std::nullopt;
  return path.substr(kBegin.size(), path.size() - kBegin.size() - kEnd.size());
}

std::string LastPart(const std::string& path) { return path.substr(path.rfind('/') + 1); }

}  // namespace

const std::vector<ApiServer::Entry>& ApiServer::Table() {
  using S = ApiServer;
  constexpr Match kExact = Match::kExact, kPrefix = Match::kPrefix;
  constexpr Access kPublic = Access::kPublic, kUser = Access::kUser, kAdmin = Access::kAdmin;
  static const std::vector<Entry> table = {
      {"GET", "/", kExact, kPublic, false, &S::Index},
      {"GET", "/health", kExact, kPublic, false, &S::Health},
      {"GET", "/v1/health", kExact, kPublic, false, &S::Health},
      {"GET", "/metrics", kExact, kUser, false, &S::MetricsText},
      {"POST", "/v1/chat/completions", kExact, kUser, true, &S::Chat},
      {"POST", "/chat/completions", kExact, kUser, true, &S::Chat},
      {"POST", "/v1/completions", kExact, kUser, true, &S::Completions},
      {"POST", "/completions", kExact, kUser, true, &S::Completions},
      {"POST", "/completion", kExact, kUser, false, &S::OldCompletion},
      {"GET", "/v1/models", kExact, kUser, true, &S::Models},
      {"GET", "/models", kExact, kUser, true, &S::Models},
      {"GET", "/v1/models/", kPrefix, kUser, true, &S::Model},
      {"POST", "/tokenize", kExact, kUser, true, &S::Tokenize},
      {"POST", "/detokenize", kExact, kUser, true, &S::Detokenize},
      {"POST", "/apply-template", kExact, kUser, true, &S::ApplyTemplate},
      {"GET", "/props", kExact, kUser, true, &S::Props},
      {"GET", "/slots", kExact, kAdmin, true, &S::Slots},
      {"POST", "/slots/", kPrefix, kAdmin, false, &S::NotYet},
      {"GET", "/v1/cache", kExact, kAdmin, true, &S::ShowCache},
      {"DELETE", "/v1/cache", kExact, kAdmin, true, &S::Clear},
      {"POST", "/v1/cache/explain", kExact, kAdmin, true, &S::Explain},
      {"POST", "/v1/cache/", kPrefix, kAdmin, true, &S::Pin},     // {id}/pin
      {"DELETE", "/v1/cache/", kPrefix, kAdmin, true, &S::Drop},  // {id} or {id}/pin
      {"POST", "/v1/messages", kExact, kUser, false, &S::NotYet},
      {"POST", "/v1/messages/count_tokens", kExact, kUser, false, &S::NotYet},
      {"POST", "/v1/responses", kExact, kUser, false, &S::NotYet},
  };
  return table;
}

ApiServer::ApiServer(HttpServer& http, Metrics& metrics, ApiOptions options)
    : options_(std::move(options)),
      context_(std::make_unique<ServeContext>(http, metrics, options_.jobs_max)) {
  context_->defaults = options_.defaults;
  context_->request_timeout_ms = options_.request_timeout_ms;
  context_->model_id = options_.alias;
  http.SetRefuser([this](int status, std::string_view message, std::string_view origin) {
    const bool is_full = status >= 500;
    const char* type = is_full ? "unavailable_error" : "invalid_request_error";
    context_->metrics.CountReply("other", status);
    HttpHeaders headers = CorsHeaders(options_.access, origin);
    if (is_full) headers.push_back(RetrySoon());
    return HttpRefusal{ErrorJson(MakeError(status, type, "", "[http] " + std::string(message))),
                       std::move(headers)};
  });
}

void ApiServer::Serve(LoadedService service) {
  ServeContext& c = *context_;
  c.created = std::chrono::duration_cast<std::chrono::seconds>(
                  std::chrono::system_clock::now().time_since_epoch())
                  .count();
  if (c.model_id.empty()) c.model_id = service.model.name;
  c.has_think_tags = service.template_source.find("<think>") != std::string::npos ||
                     service.template_source.find("</think>") != std::string::npos;
  c.loaded = std::move(service);
  progress_at_ = Clock::now();
}

void ApiServer::Handle(std::shared_ptr<HttpRequest> request, std::shared_ptr<HttpReply> http) {
  std::string& path = request->path;
  // Not where an id left empty would name everything: DELETE /v1/cache/ is not DELETE /v1/cache.
  while (path.size() > 1 && path.back() == '/' && request->method != "DELETE") path.pop_back();
  const std::string method = request->method == "HEAD" ? "GET" : request->method;
  const Entry* found = nullptr;
  const char* route = "other";
  std::string allowed;
  for (const Entry& e : Table()) {
    const std::string_view pattern = e.path;
    const bool matches = e.match == Match::kExact
                             ? path == pattern
                             : path.size() > pattern.size() && path.starts_with(pattern);
    if (!matches) continue;
    // The exact entries of a path stand before its prefixes.
    if (!allowed.empty() && e.match == Match::kPrefix && path == route) continue;
    route = e.path;
    allowed += (allowed.empty() ? "" : ", ") + std::string(e.method);
    if (found == nullptr && method == e.method) found = &e;
  }
  HttpHeaders headers = CorsHeaders(options_.access, request->Header("origin"));
  headers.emplace_back("Server", "cairn");
  const std::string id = "req-" + context_->RandomDigits();
  headers.emplace_back("X-Request-Id", id);
  ApiReply reply(std::move(http), route, id, std::move(headers), &context_->metrics);
  if (method == "OPTIONS") return reply.Empty(PreflightHeaders(*request));
  if (found == nullptr) return Refuse(*request, reply, allowed);
  switch (CheckAccess(options_.access, found->access, *request)) {
    case Verdict::kAllowed:
      break;
    case Verdict::kNoKey:
      return reply.Error(
          MakeError(401, "authentication_error", "invalid_api_key",
                    "no valid API key, wanted Authorization: Bearer KEY or x-api-key: KEY"),
          {{"WWW-Authenticate", "Bearer"}});
    case Verdict::kNotLocal:
      return reply.Error(MakeError(403, "permission_error", "local_only",
                                   "this route shows prompts: without --admin-key or --api-key "
                                   "only clients on the server's own machine may use it"));
  }
  if (found->needs_model && context_->loaded.engine == nullptr) return reply.Error(Loading());
  (this->*found->action)(std::move(request), std::move(reply));
}

void ApiServer::Refuse(const HttpRequest& request, ApiReply& reply,
                       const std::string& allowed_methods) {
  const std::string shown = request.path.substr(0, 200);
  if (allowed_methods.empty()) {
    return reply.Error(MakeError(404, "invalid_request_error", "not_found",
                                 "no route " + request.method + " " + shown));
  }
  reply.Error(MakeError(405, "invalid_request_error", "method_not_allowed",
                        "got " + request.method + " " + shown + ", wanted " + allowed_methods),
              {{"Allow", allowed_methods + ", OPTIONS"}});
}

void ApiServer::Index(std::shared_ptr<HttpRequest>, ApiReply reply) {
  reply.Text(200, "text/plain; charset=utf-8",
             "cairn: an inference server with exact prompt checkpoints\n"
             "POST /v1/chat/completions, /v1/completions; GET /v1/models, /health, /metrics, "
             "/v1/cache\n");
}

void ApiServer::Health(std::shared_ptr<HttpRequest>, ApiReply reply) {
  const Engine* engine = context_->loaded.engine.get();
  const char* status = "ok";
  if (draining_)
    status = "shutting down";
  else if (engine == nullptr)
    status = "loading model";
  else if (!engine->healthy())
    status = "engine fault";
  else if (Clock::now() - progress_at_ > kStuckAfter)
    status = "engine stuck";
  const bool ok = std::string_view(status) == "ok";
  reply.Json(ok ? 200 : 503, HealthJson(status), ok ? HttpHeaders() : HttpHeaders{RetrySoon()});
}

void ApiServer::MetricsText(std::shared_ptr<HttpRequest>, ApiReply reply) {
  reply.Text(200, "text/plain; version=0.0.4; charset=utf-8",
             context_->metrics.Text(context_->loaded.engine.get(), context_->preparing));
}

void ApiServer::Models(std::shared_ptr<HttpRequest>, ApiReply reply) {
  reply.Json(200, ModelsJson(context_->model_id, context_->created, context_->loaded.model));
}

void ApiServer::Model(std::shared_ptr<HttpRequest> request, ApiReply reply) {
  const std::string id = request->path.substr(std::string_view("/v1/models/").size());
  if (id != context_->model_id) {
    return reply.Error(
        MakeError(404, "invalid_request_error", "model_not_found",
                  "no model \"" + id.substr(0, 200) + "\", wanted \"" + context_->model_id + "\""));
  }
  reply.Json(200, ModelJson(id, context_->created, context_->loaded.model));
}

void ApiServer::Props(std::shared_ptr<HttpRequest>, ApiReply reply) {
  const LoadedService& l = context_->loaded;
  reply.Json(200,
             PropsJson(l.model, l.template_source, std::string(l.tokenizer->bos_text()),
                       std::string(l.tokenizer->eos_text()), l.engine->options().decode_concurrency,
                       l.engine->options().cache.enabled()));
}

void ApiServer::Chat(std::shared_ptr<HttpRequest> request, ApiReply reply) {
  StartGeneration(*context_, Route::kChat, std::move(request), std::move(reply));
}

void ApiServer::Completions(std::shared_ptr<HttpRequest> request, ApiReply reply) {
  StartGeneration(*context_, Route::kCompletion, std::move(request), std::move(reply));
}

void ApiServer::Tokenize(std::shared_ptr<HttpRequest> request, ApiReply reply) {
  AnswerFromWorker(*context_, std::move(reply), request->body.size(),
                   [this, request] { return TokenizeJob(context_->loaded, request->body); });
}

void ApiServer::Detokenize(std::shared_ptr<HttpRequest> request, ApiReply reply) {
  AnswerFromWorker(*context_, std::move(reply), request->body.size(),
                   [this, request] { return DetokenizeJob(context_->loaded, request->body); });
}

void ApiServer::ApplyTemplate(std::shared_ptr<HttpRequest> request, ApiReply reply) {
  AnswerFromWorker(*context_, std::move(reply), request->body.size(),
                   [this, request] { return ApplyTemplateJob(*context_, request->body); });
}

void ApiServer::Slots(std::shared_ptr<HttpRequest>, ApiReply reply) {
  AnswerFromWorker(*context_, std::move(reply), 0, [this] { return SlotsJob(context_->loaded); });
}

void ApiServer::ShowCache(std::shared_ptr<HttpRequest>, ApiReply reply) {
  AnswerFromWorker(*context_, std::move(reply), 0,
                   [this] { return ShowCacheJob(context_->loaded); });
}

void ApiServer::Explain(std::shared_ptr<HttpRequest> request, ApiReply reply) {
  AnswerFromWorker(*context_, std::move(reply), request->body.size(),
                   [this, request] { return ExplainJob(*context_, request->body); });
}

void ApiServer::Clear(std::shared_ptr<HttpRequest>, ApiReply reply) {
  AnswerFromWorker(*context_, std::move(reply), 0, [this] { return ClearJob(context_->loaded); });
}

void ApiServer::Drop(std::shared_ptr<HttpRequest> request, ApiReply reply) {
  if (const auto id = PinId(request->path)) {
    return AnswerFromWorker(*context_, std::move(reply), 0,
                            [this, id] { return UnpinJob(context_->loaded, *id); });
  }
  AnswerFromWorker(*context_, std::move(reply), 0,
                   [this, id = LastPart(request->path)] { return DropJob(context_->loaded, id); });
}

void ApiServer::Pin(std::shared_ptr<HttpRequest> request, ApiReply reply) {
  const auto id = PinId(request->path);
  if (!id) return Refuse(*request, reply, "");
  AnswerFromWorker(*context_, std::move(reply), 0,
                   [this, id] { return PinJob(context_->loaded, *id); });
}

void ApiServer::NotYet(std::shared_ptr<HttpRequest> request, ApiReply reply) {
  reply.Error(
      MakeError(501, "invalid_request_error", "unsupported",
                request->method + " " + request->path.substr(0, 200) + ": not in this version"));
}

void ApiServer::OldCompletion(std::shared_ptr<HttpRequest>, ApiReply reply) {
  reply.Error(MakeError(404, "invalid_request_error", "not_found",
                        "no route POST /completion, wanted /v1/completions"));
}

void ApiServer::OnTick() {
  const Engine* engine = context_->loaded.engine.get();
  if (engine == nullptr) return;
  const EngineStats& s = engine->stats();
  const uint64_t steps = s.steps;
  const bool idle = s.slots_busy == 0 && s.queue_length == 0;
  if (steps != steps_seen_ || idle) progress_at_ = Clock::now();
  steps_seen_ = steps;
}

void ApiServer::Drain() {
  draining_ = true;
  if (context_->loaded.engine) context_->loaded.engine->Drain();
}

void ApiServer::CancelAll() {
  if (context_->loaded.engine) context_->loaded.engine->CancelAll();
}

void ApiServer::Close() {
  context_->quick_work.Close();
  context_->work.Close();
  context_->loaded.engine.reset();
}

}  // namespace cairn
