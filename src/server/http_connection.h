// One client's connection: a state machine over a socket. Only http_server.cc and
// http_connection.cc include this.
//
//   kRequest  reads and parses; idle or in the middle of a request
//   kReply    a request was handed out, its reply is being written; still reads, to see the end of
//             file, and keeps what a pipelining client sends early
//   kLinger   nothing more will be written; reads and drops, so that the client sees the reply and
//             not a reset
//   kClosed
#pragma once

#include <boost/asio/ip/tcp.hpp>

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "server/http_server.h"

namespace cairn {

class HttpConnection;

// What connections share. IO thread only.
struct HttpShared {
  HttpLimits limits;
  HttpHandler handler;
  HttpServer::Refuser refuser;
  std::function<void(const std::shared_ptr<HttpConnection>&)> closed;
  size_t all_bodies_bytes = 0;
  int active_requests = 0;
  bool stopping = false;
};

class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  using Clock = std::chrono::steady_clock;

  static std::shared_ptr<HttpConnection> Create(boost::asio::ip::tcp::socket socket,
                                                HttpShared& shared);
  virtual ~HttpConnection() = default;

  virtual void Start() = 0;
  virtual void StartRefused() = 0;  // too many connections: 503, then close
  virtual void Tick(Clock::time_point now) = 0;
  virtual void Close() = 0;  // at once
  virtual void CloseIfIdle() = 0;
};

}  // namespace cairn
