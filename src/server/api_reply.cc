#include "server/api_reply.h"

#include "server/openai_json.h"

namespace cairn {

void ApiReply::Json(int status, std::string body, const HttpHeaders& more) {
  Count(status);
  http_->Send(status, "application/json; charset=utf-8", std::move(body), With(more));
}

void ApiReply::Text(int status, std::string_view content_type, std::string body) {
  Count(status);
  http_->Send(status, content_type, std::move(body), With({}));
}

void ApiReply::Empty(const HttpHeaders& more) {
  Count(204);
  http_->Send(204, "", "", With(more));
}

void ApiReply::Error(const ApiError& error, const HttpHeaders& more) {
  HttpHeaders headers = more;
  if (error.retry_after_s)
    headers.emplace_back("Retry-After", std::to_string(*error.retry_after_s));
  Json(error.http_status, ErrorJson(error), headers);
}

void ApiReply::BeginEvents() {
  http_->BeginStream("text/event-stream; charset=utf-8",
                     With({{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}}));
}

void ApiReply::Data(std::string_view json) {
  http_->Write(std::string("data: ").append(json).append("\n\n"));
}

void ApiReply::Comment(std::string_view text) {
  http_->Write(std::string(": ").append(text).append("\n\n"));
}

void ApiReply::EndEvents() {
  Count(200);
  Data("[DONE]");
  http_->EndStream(false);
}

void ApiReply::FailEvents(const ApiError& error) {
  Count(error.http_status);
  Data(ErrorJson(error));
  http_->EndStream(true);
}

void ApiReply::CountGone() { Count(kStatusClientGone); }

HttpHeaders ApiReply::With(const HttpHeaders& more) const {
  HttpHeaders all = headers_;
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

void ApiReply::Count(int status) {
  metrics_->CountReply(route_, status);
  // What is asked every few seconds, by programs.
  const bool is_probe = route_ == "/health" || route_ == "/v1/health" || route_ == "/metrics";
  const auto spent = std::chrono::steady_clock::now() - begin_;
  std::vector<LogField> fields = {
      {"request", request_id_},
      {"route", route_},
      {"status", int64_t{status}},
      {"ms", std::chrono::duration_cast<std::chrono::milliseconds>(spent).count()}};
  fields.insert(fields.end(), notes_.begin(), notes_.end());
  Log(is_probe ? LogLevel::kDebug : LogLevel::kInfo, "[server] reply", fields);
}

}  // namespace cairn
