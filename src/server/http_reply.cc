#include "server/http_reply.h"

#include <cstdio>

#include "server/http_text.h"

namespace cairn {

std::string ConnectionReply::Head(int status, std::string_view content_type,
                                  const HttpHeaders& headers, bool keep_alive) const {
  std::string head = "HTTP/1.1 " + std::to_string(status) + " " + ReasonPhrase(status) + "\r\n";
  if (!content_type.empty()) head.append("Content-Type: ").append(content_type).append("\r\n");
  for (const auto& [name, value] : headers)
    head.append(name).append(": ").append(value).append("\r\n");
  head.append("Connection: ").append(keep_alive ? "keep-alive" : "close").append("\r\n");
  return head;
}

void ConnectionReply::Send(int status, std::string_view content_type, std::string body,
                           const HttpHeaders& headers) {
  const auto output = output_.lock();
  if (!output || begun_ || ended_) return;
  begun_ = true;
  std::string head = Head(status, content_type, headers, output->keep_alive());
  if (status != 204) head += "Content-Length: " + std::to_string(body.size()) + "\r\n";
  head += "\r\n";
  if (!is_head_ && status != 204) head += body;
  output->Write(head);
  ended_ = true;
  output->EndReply(false);
}

void ConnectionReply::BeginStream(std::string_view content_type, const HttpHeaders& headers) {
  const auto output = output_.lock();
  if (!output || begun_ || ended_) return;
  begun_ = true;
  std::string head = Head(200, content_type, headers, is_http_11_ && output->keep_alive());
  head += is_http_11_ ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n";
  output->Write(head);
}

void ConnectionReply::Write(std::string_view data) {
  const auto output = output_.lock();
  if (!output || ended_ || data.empty() || is_head_) return;
  if (!is_http_11_) return output->Write(data);
  char size[24];
  std::snprintf(size, sizeof size, "%zx\r\n", data.size());
  output->Write(std::string(size).append(data).append("\r\n"));
}

void ConnectionReply::EndStream(bool close_connection) {
  const auto output = output_.lock();
  if (!output || ended_) return;
  if (is_http_11_ && !is_head_) output->Write("0\r\n\r\n");
  ended_ = true;
  output->EndReply(close_connection || !is_http_11_);
}

void ConnectionReply::Abort() noexcept {
  if (const auto output = output_.lock()) output->Close();
}

bool ConnectionReply::wants_more() const {
  const auto output = output_.lock();
  return output && output->wants_more();
}

}  // namespace cairn
