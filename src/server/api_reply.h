// One API reply: an HttpReply with what all of them share (CORS headers, the error object, the
// count in /metrics). Threads: the IO thread only.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "server/http_server.h"
#include "server/metrics.h"
#include "server/openai_types.h"

namespace cairn {

inline constexpr int kStatusClientGone = 499;  // in /metrics only: nobody received anything

class ApiReply {
 public:
  // metrics must outlive this. route: as /metrics shows it.
  ApiReply(std::shared_ptr<HttpReply> http, std::string route, HttpHeaders headers,
           Metrics* metrics)
      : http_(std::move(http)),
        route_(std::move(route)),
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

 private:
  HttpHeaders With(const HttpHeaders& more) const;
  void Count(int status);

  std::shared_ptr<HttpReply> http_;
  std::string route_;
  HttpHeaders headers_;
  Metrics* metrics_;
};

}  // namespace cairn
