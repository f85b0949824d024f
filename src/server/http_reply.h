// Replies as HTTP/1.1 bytes: the head, Content-Length or chunks, and what HTTP/1.0 and HEAD change.
// Only http_connection.cc and http_reply.cc include this. Threads: the IO thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "server/http_server.h"

namespace cairn {

// Where the bytes of a reply go: a connection.
class ReplyOutput {
 public:
  virtual void Write(std::string_view data) = 0;
  virtual void EndReply(bool close_connection) = 0;
  virtual void Close() = 0;  // at once
  virtual bool keep_alive() const = 0;
  virtual bool wants_more() const = 0;

 protected:
  ~ReplyOutput() = default;
};

// The handler's end of one request. Outlives its connection harmlessly.
class ConnectionReply : public HttpReply {
 public:
  ConnectionReply(std::weak_ptr<ReplyOutput> output, bool is_head, bool is_http_11)
      : output_(std::move(output)), is_head_(is_head), is_http_11_(is_http_11) {}

  void Send(int status, std::string_view content_type, std::string body,
            const HttpHeaders& headers) override;
  void BeginStream(std::string_view content_type, const HttpHeaders& headers) override;
  void Write(std::string_view data) override;
  void EndStream(bool close_connection) override;
  bool wants_more() const override;
  void SetEvents(Events events) override { events_ = std::move(events); }
  void Abort() noexcept override;

  // Of the connection
  Events& events() { return events_; }
  bool ended() const { return ended_; }
  void Detach() {  // no more of anything
    ended_ = true;
    output_.reset();
    // What the events hold may own this reply; it goes when the caller's copy goes.
    const Events dropped = std::exchange(events_, {});
  }

 private:
  std::string Head(int status, std::string_view content_type, const HttpHeaders& headers,
                   bool keep_alive) const;

  std::weak_ptr<ReplyOutput> output_;
  const bool is_head_, is_http_11_;
  bool begun_ = false, ended_ = false;
  Events events_;
};

}  // namespace cairn
