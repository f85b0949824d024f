// One API reply: an HttpReply with what all of them share (CORS headers, the error object, the
// count in /metrics, the log line). Threads: the IO thread only.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/log.h"
#include "server/http_server.h"
#include "server/metrics.h"
#include "server/openai_types.h"

namespace cairn {

inline constexpr int kStatusClientGone = 499;  // in /metrics only: nobody received anything

class ApiReply {
 public:
  // metrics must outlive this. route: as /metrics shows it.
  // request_id: in every log line about the request, and the client's as X-Request-Id.
  ApiReply(std::shared_ptr<HttpReply> http, std::string route, std::string request_id,
           HttpHeaders headers, Metrics* metrics)
      : http_(std::move(http)),
        route_(std::move(route)),
        request_id_(std::move(request_id)),
        headers_(std::move(headers)),
        metrics_(metrics) {}

  void Json(int status, std::string body, const HttpHeaders& more = {});
  void Text(int status, std::string_view content_type, std::string body);
  void Empty(const HttpHeaders& more);  // 204
  void Error(const ApiError& error, const HttpHeaders& more = {});

  // Server-sent events.
  void BeginEvents();
  void Data(std::string_view json);     // one "data:" event
  void Comment(std::string_view text);  // keeps the connection alive; clients skip it
  void EndEvents();                     // [DONE]
  void FailEvents(const ApiError& error);

  void CountGone();  // the client left

  HttpReply& http() { return *http_; }
  const std::string& request_id() const { return request_id_; }
  // A figure for the line that the end of the reply logs.
  void Note(std::string_view name, int64_t value) { notes_.emplace_back(name, value); }
  void Note(std::string_view name, std::string_view text) { notes_.emplace_back(name, text); }

 private:
  HttpHeaders With(const HttpHeaders& more) const;
  void Count(int status);

  std::shared_ptr<HttpReply> http_;
  std::string route_, request_id_;
  HttpHeaders headers_;
  Metrics* metrics_;
  std::vector<LogField> notes_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace cairn
