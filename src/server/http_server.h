// HTTP/1.1 as events: whole requests in, replies or streams out, all on one IO thread. Knows
// nothing of what is served.
//
// Owns: the listening socket and every connection. Threads: Run is called by one thread, the IO
// thread; the handler, HttpReply and its events live on it. Post may be called from any thread,
// also before and after Run. Limits: HttpLimits; a client can hold no more than they say, however
// slow, broken or hostile it is.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace cairn {

struct HttpLimits {
  size_t header_bytes_max = size_t{64} << 10;       // beyond: 431
  size_t body_bytes_max = size_t{8} << 20;          // beyond: 413
  size_t all_bodies_bytes_max = size_t{512} << 20;  // of all connections; beyond: 503
  int connections_max = 1024;                       // beyond: 503 and close
  size_t output_bytes_max = size_t{256} << 10;  // of a stream; then its writer is asked to pause
  size_t linger_bytes_max = size_t{64} << 20;   // read and dropped after an early error reply
  std::chrono::milliseconds request_time_max{30000};  // from a request's first byte to its last
  std::chrono::milliseconds idle_time_max{75000};     // between two requests
  std::chrono::milliseconds write_time_max{
      30000};  // a client that takes no byte for so long is gone
  std::chrono::milliseconds linger_time_max{5000};  // for a client that does not close
};

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

// What the server says by itself to a request that it does not hand out.
struct HttpRefusal {
  std::string body;  // JSON
  HttpHeaders headers;
};

struct HttpRequest {
  std::string method;
  std::string path;     // percent-decoded, without the query
  std::string query;    // as sent, without '?'
  HttpHeaders headers;  // names in lower case
  std::string body;
  bool from_loopback = false;

  // The first header of that (lower-case) name; empty if there is none.
  std::string_view Header(std::string_view name) const;
};

// The way to answer one request: Send, or BeginStream, Write..., EndStream. Calls after the client
// has gone change nothing.
class HttpReply {
 public:
  struct Events {
    std::function<void()> gone;  // the client closed, or takes nothing: nobody will read the reply
    std::function<void()> drained;  // wants_more() became true again
    std::function<void()> tick;     // a few times a second
  };
  virtual ~HttpReply() = default;

  virtual void Send(int status, std::string_view content_type, std::string body,
                    const HttpHeaders& headers = {}) = 0;
  // Status 200; the body comes in pieces.
  virtual void BeginStream(std::string_view content_type, const HttpHeaders& headers = {}) = 0;
  virtual void Write(std::string_view data) = 0;
  virtual void EndStream(bool close_connection) = 0;
  // False: the client reads slowly; what is written now piles up.
  virtual bool wants_more() const = 0;
  // With a `gone` event the end of the client's sending side counts as gone. Without one a client
  // may close its side and still read the reply. Dropped with the end of the reply.
  virtual void SetEvents(Events events) = 0;
  // Closes the connection, whatever was sent: the reply cannot be made. Allocates nothing.
  virtual void Abort() noexcept = 0;
};

using HttpHandler =
    std::function<void(std::shared_ptr<HttpRequest> request, std::shared_ptr<HttpReply> reply)>;

class HttpServer {
 public:
  // Listens; connections wait until Run. port 0: any free one. Errors: kInvalidArgument (no such
  // address, or the port is in use).
  static Result<std::unique_ptr<HttpServer>> Listen(const std::string& host, int port,
                                                    const HttpLimits& limits);
  virtual ~HttpServer() = default;  // closes all connections; REQUIRES: Run has returned

  virtual int port() const = 0;
  virtual bool is_loopback() const = 0;  // only reachable from this machine

  // Makes the error replies that the server gives by itself (400, 408, 413, 431, 503). `origin`:
  // that header of the request, as far as it was read.
  using Refuser =
      std::function<HttpRefusal(int status, std::string_view message, std::string_view origin)>;
  virtual void SetRefuser(Refuser refuser) = 0;
  // Called on the IO thread with each SIGINT or SIGTERM from now on.
  virtual void OnSignal(std::function<void()> handler) = 0;
  // Called on the IO thread a few times a second.
  virtual void OnTick(std::function<void()> handler) = 0;

  // Until Stop. An exception of a handler (memory is out, most likely) ends its connection where it
  // has one, and is logged; the server goes on.
  virtual void Run(HttpHandler handler) = 0;
  virtual void Post(std::function<void()> fn) = 0;

  // IO thread only.
  virtual void StopAccepting() = 0;         // and no connection takes a second request
  virtual int active_requests() const = 0;  // whose reply is not completely written yet
  virtual void Stop() = 0;
};

}  // namespace cairn
