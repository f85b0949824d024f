// Reads what a server sent, as a client does that trusts nothing.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <string>
#include <string_view>

namespace cairn {

// Takes one reply off `rest`. Empty, or what is wrong with it; "cut" if it has no end.
inline std::string TakeReply(std::string_view* rest) {
  constexpr std::string_view kBegin = "HTTP/1.1 ", kCut = "cut";
  const size_t head_end = rest->find("\r\n\r\n");
  if (head_end == std::string_view::npos) return std::string(kCut);
  const std::string_view head = rest->substr(0, head_end + 2);
  rest->remove_prefix(head_end + 4);
  if (!head.starts_with(kBegin) || head.size() < kBegin.size() + 4) return "no status line";
  const int status = std::atoi(std::string(head.substr(kBegin.size(), 3)).c_str());
  if (status < 100 || status > 503) return "a status that no route gives";
  if (status == 500) return "an error of the server's own";
  const auto has = [&](std::string_view line) { return head.find(line) != std::string_view::npos; };
  // After a HEAD the next reply, or nothing, follows at once.
  if (status == 100 || status == 204 || rest->empty() || rest->starts_with(kBegin)) return "";
  constexpr std::string_view kLength = "\r\nContent-Length: ";
  if (has(kLength)) {
    const size_t at = head.find(kLength) + kLength.size();
    const size_t length = std::strtoull(std::string(head.substr(at, 20)).c_str(), nullptr, 10);
    if (length > rest->size()) return std::string(kCut);
    rest->remove_prefix(length);
    return "";
  }
  if (!has("\r\nTransfer-Encoding: chunked\r\n")) {  // until the connection ends
    if (!has("\r\nConnection: close\r\n")) return "a body without an end";
    *rest = {};
    return "";
  }
  while (true) {
    const size_t line_end = rest->find("\r\n");
    if (line_end == std::string_view::npos) return std::string(kCut);
    const std::string_view line = rest->substr(0, line_end);
    if (line.empty() || line.find_first_not_of("0123456789abcdef") != std::string_view::npos)
      return "a chunk's size is no number";
    const size_t size = std::strtoull(std::string(line).c_str(), nullptr, 16);
    rest->remove_prefix(line_end + 2);
    if (size > rest->size() || rest->size() - size < 2) return std::string(kCut);
    if (rest->substr(size, 2) != "\r\n") return "a chunk of another size than it says";
    rest->remove_prefix(size + 2);
    if (size == 0) return "";
  }
}

// Empty, or what is wrong with the replies of one connection. `whole`: none may be cut.
inline std::string CheckReplies(std::string_view bytes, bool whole) {
  while (!bytes.empty()) {
    const std::string wrong = TakeReply(&bytes);
    if (wrong == "cut") return whole ? "the last reply is cut" : "";
    if (!wrong.empty()) return wrong;
  }
  return "";
}

}  // namespace cairn
