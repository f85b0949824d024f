#include "server/http_connection.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include <algorithm>
#include <exception>
#include <utility>

#include "server/http_reply.h"
#include "server/http_text.h"

namespace cairn {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

constexpr size_t kReadBytes = size_t{64} << 10;
constexpr size_t kEarlyBytesMax = size_t{64} << 10;      // of pipelined requests
constexpr size_t kUnparsedBytesMax = size_t{128} << 10;  // of a chunk's header or the trailer

bool IsLoopback(const asio::ip::address& a) {
  if (a.is_v6() && a.to_v6().is_v4_mapped())
    return asio::ip::make_address_v4(asio::ip::v4_mapped, a.to_v6()).is_loopback();
  return a.is_loopback();
}

class Connection : public HttpConnection, public ReplyOutput {
 public:
  Connection(tcp::socket socket, HttpShared& shared) : socket_(std::move(socket)), shared_(shared) {
    error_code ec;
    socket_.set_option(tcp::no_delay(true), ec);
    const auto remote = socket_.remote_endpoint(ec);
    from_loopback_ = !ec && IsLoopback(remote.address());
  }

  void Start() override;
  void StartRefused() override;
  void Tick(Clock::time_point now) override;
  void Close() override;
  void CloseIfIdle() override {
    if (phase_ == Phase::kRequest && !request_begun_) Close();
  }

  // -- ReplyOutput
  void Write(std::string_view data) override;
  void EndReply(bool close_connection) override;
  bool keep_alive() const override { return keep_alive_ && !shared_.stopping; }
  bool wants_more() const override { return output_bytes() < shared_.limits.output_bytes_max; }

 private:
  enum class Phase { kRequest, kReply, kLinger, kClosed };

  std::shared_ptr<Connection> Self() {
    return std::static_pointer_cast<Connection>(shared_from_this());
  }
  void BeginRequest(std::chrono::milliseconds patience);
  void Read();
  void OnRead(error_code ec, size_t count);
  void OnReadEnd(error_code ec);
  void Parse();
  void SkipEmptyLines();
  bool OnHeader();
  bool CountBody();
  void Dispatch();
  void Refuse(int status, std::string_view message);
  void Flush();
  void OnWritten(error_code ec, size_t count);
  void AfterReply();
  void Linger();
  void OnTick(Clock::time_point now);
  void Guard(const auto& step);
  void Gone();
  void Reset();
  void ReleaseReply();
  size_t output_bytes() const { return out_.size() + sending_.size() - sent_; }

  tcp::socket socket_;
  HttpShared& shared_;
  Phase phase_ = Phase::kRequest;
  bool from_loopback_ = false;
  // Reading
  boost::beast::flat_buffer buffer_{kUnparsedBytesMax + kReadBytes};
  std::optional<http::request_parser<http::string_body>> parser_;
  bool reading_ = false, request_begun_ = false, header_done_ = false;
  bool drop_input_ = false;  // an early error reply: what still comes is not looked at
  bool read_ended_ = false;  // end of file
  size_t dropped_bytes_ = 0;
  size_t body_bytes_ = 0;  // counted in shared_.all_bodies_bytes
  Clock::time_point read_deadline_ = Clock::time_point::max(), linger_end_;
  // Replying
  std::shared_ptr<ConnectionReply> reply_;
  bool keep_alive_ = false;
  std::string out_, sending_;  // sending_[sent_, size) is on its way
  size_t sent_ = 0;
  bool writing_ = false, was_full_ = false;
  Clock::time_point write_deadline_ = Clock::time_point::max();
};

// -- Reading

void Connection::Start() {
  Guard([this] {
    BeginRequest(shared_.limits.request_time_max);
    Read();
  });
}

void Connection::StartRefused() {
  Guard([this] {
    Refuse(503, "too many connections");
    Read();
  });
}

void Connection::BeginRequest(std::chrono::milliseconds patience) {
  phase_ = Phase::kRequest;
  parser_.emplace();
  parser_->header_limit(static_cast<uint32_t>(shared_.limits.header_bytes_max));
  parser_->body_limit(shared_.limits.body_bytes_max);
  request_begun_ = header_done_ = false;
  read_deadline_ = Clock::now() + patience;
}

void Connection::Read() {
  if (reading_ || read_ended_ || phase_ == Phase::kClosed) return;
  if (phase_ == Phase::kReply && !drop_input_ && buffer_.size() >= kEarlyBytesMax) return;
  reading_ = true;
  socket_.async_read_some(buffer_.prepare(kReadBytes),
                          [self = Self()](error_code ec, size_t count) {
                            self->Guard([&] { self->OnRead(ec, count); });
                          });
}

void Connection::OnRead(error_code ec, size_t count) {
  reading_ = false;
  if (phase_ == Phase::kClosed) return;
  buffer_.commit(count);
  if (ec) return OnReadEnd(ec);
  if (drop_input_ || phase_ == Phase::kLinger) {
    dropped_bytes_ += buffer_.size();
    buffer_.consume(buffer_.size());
    if (dropped_bytes_ > shared_.limits.linger_bytes_max) return Gone();
    if (phase_ == Phase::kLinger)
      read_deadline_ = std::min(linger_end_, Clock::now() + shared_.limits.linger_time_max);
  } else if (phase_ == Phase::kRequest) {
    Parse();
  }
  Read();
}

void Connection::OnReadEnd(error_code ec) {
  read_ended_ = true;
  if (ec != asio::error::eof || phase_ != Phase::kReply) return Gone();
  // The client sends no more. Whoever asked to know takes that for the end; any other reply is
  // still written.
  keep_alive_ = false;
  if (reply_ && reply_->events().gone) Gone();
}

void Connection::Parse() {
  while (phase_ == Phase::kRequest && buffer_.size() > 0) {
    if (!request_begun_) {
      SkipEmptyLines();
      if (buffer_.size() == 0) return;
      request_begun_ = true;
      read_deadline_ = Clock::now() + shared_.limits.request_time_max;
    }
    error_code ec;
    const size_t used = parser_->put(buffer_.data(), ec);
    buffer_.consume(used);
    if (ec == http::error::need_more) ec = {};
    if (ec == http::error::body_limit) {
      return Refuse(413, "request body: larger than " +
                             std::to_string(shared_.limits.body_bytes_max) + " bytes");
    }
    if (ec == http::error::header_limit || ec == http::error::buffer_overflow) {
      return Refuse(431, "request header: larger than " +
                             std::to_string(shared_.limits.header_bytes_max) + " bytes");
    }
    if (ec) return Refuse(400, "malformed HTTP request: " + ec.message());
    if (parser_->is_header_done() && !header_done_ && !OnHeader()) return;
    if (!CountBody()) return;
    if (parser_->is_done()) return Dispatch();
    if (used == 0) break;
  }
  // The parser waits for the end of a line that is longer than the buffer.
  if (phase_ == Phase::kRequest && buffer_.size() > kUnparsedBytesMax)
    Refuse(400, "malformed HTTP request: a chunk header without an end");
}

// RFC 9112, 2.2: empty lines before a request are ignored. They do not begin it, so its time runs
// on.
void Connection::SkipEmptyLines() {
  const auto* bytes = static_cast<const char*>(buffer_.data().data());
  size_t count = 0;
  while (count < buffer_.size() && (bytes[count] == '\r' || bytes[count] == '\n')) ++count;
  buffer_.consume(count);
}

// False: refused.
bool Connection::OnHeader() {
  header_done_ = true;
  const auto& m = parser_->get();
  if (m.version() != 11 && m.version() != 10) {
    Refuse(400, "malformed HTTP request: version, wanted HTTP/1.1");
    return false;
  }
  // A body in a coding that is not undone here would be taken for what it is not, or, where its end
  // is not known, for the next request.
  const auto codings = m.count(http::field::transfer_encoding);
  if (codings > 1 || (codings == 1 && AsciiLower(m[http::field::transfer_encoding]) != "chunked")) {
    Refuse(400, "malformed HTTP request: Transfer-Encoding, wanted chunked and nothing else");
    return false;
  }
  const auto expect = m.find(http::field::expect);
  if (expect != m.end() && !parser_->is_done()) {
    if (AsciiLower(expect->value()) != "100-continue") {
      Refuse(400, "malformed HTTP request: Expect, wanted 100-continue");
      return false;
    }
    Write("HTTP/1.1 100 Continue\r\n\r\n");
  }
  return true;
}

// False: refused.
bool Connection::CountBody() {
  const size_t now = parser_->get().body().size();
  shared_.all_bodies_bytes += now - body_bytes_;
  body_bytes_ = now;
  if (shared_.all_bodies_bytes <= shared_.limits.all_bodies_bytes_max) return true;
  Refuse(503, "too many large requests at once");
  return false;
}

void Connection::Dispatch() {
  auto message = parser_->release();
  auto request = std::make_shared<HttpRequest>();
  request->method = std::string(message.method_string());
  std::string_view target(message.target().data(), message.target().size());
  for (const std::string_view scheme : {"http://", "https://"}) {  // the absolute form
    if (target.substr(0, scheme.size()) != scheme) continue;
    const size_t slash = target.find('/', scheme.size());
    target = slash == std::string_view::npos ? std::string_view("/") : target.substr(slash);
  }
  target = target.substr(0, target.find('#'));
  const size_t mark = target.find('?');
  request->path = PercentDecoded(target.substr(0, mark));
  if (mark != std::string_view::npos) request->query = target.substr(mark + 1);
  for (const auto& field : message)
    request->headers.emplace_back(AsciiLower(field.name_string()), std::string(field.value()));
  request->body = std::move(message.body());
  request->from_loopback = from_loopback_;
  keep_alive_ = message.keep_alive();
  phase_ = Phase::kReply;
  read_deadline_ = Clock::time_point::max();
  reply_ =
      std::make_shared<ConnectionReply>(Self(), request->method == "HEAD", message.version() == 11);
  ++shared_.active_requests;
  shared_.handler(std::move(request), reply_);
}

// An answer of our own to a request that will not be served; the connection ends with it.
void Connection::Refuse(int status, std::string_view message) {
  if (phase_ != Phase::kRequest) return;
  phase_ = Phase::kReply;
  drop_input_ = true;
  keep_alive_ = false;
  read_deadline_ = Clock::now() + shared_.limits.linger_time_max + shared_.limits.write_time_max;
  buffer_.consume(buffer_.size());
  std::string origin;
  if (parser_) origin = std::string(parser_->get()[http::field::origin]);
  HttpRefusal refusal = shared_.refuser(status, message, origin);
  parser_.emplace();
  reply_ = std::make_shared<ConnectionReply>(Self(), false, true);
  ++shared_.active_requests;
  reply_->Send(status, "application/json", std::move(refusal.body), refusal.headers);
}

// -- Writing

void Connection::Write(std::string_view data) {
  if (phase_ == Phase::kClosed) return;
  out_.append(data);
  if (output_bytes() >= shared_.limits.output_bytes_max) was_full_ = true;
  Flush();
}

void Connection::Flush() {
  if (writing_ || phase_ == Phase::kClosed) return;
  if (sent_ == sending_.size()) {
    sending_.clear();
    sent_ = 0;
    std::swap(sending_, out_);
    if (sending_.empty()) return;
    write_deadline_ = Clock::now() + shared_.limits.write_time_max;
  }
  writing_ = true;
  socket_.async_write_some(asio::buffer(sending_.data() + sent_, sending_.size() - sent_),
                           [self = Self()](error_code ec, size_t count) {
                             self->Guard([&] { self->OnWritten(ec, count); });
                           });
}

void Connection::OnWritten(error_code ec, size_t count) {
  writing_ = false;
  if (phase_ == Phase::kClosed) return;
  if (ec) return Gone();
  sent_ += count;
  write_deadline_ = Clock::now() + shared_.limits.write_time_max;
  Flush();
  if (writing_) {
    if (!was_full_ || output_bytes() >= shared_.limits.output_bytes_max / 2) return;
  } else {
    write_deadline_ = Clock::time_point::max();
    if (sending_.capacity() > kReadBytes) std::string().swap(sending_);
  }
  if (was_full_) {
    was_full_ = false;
    if (reply_) {
      const auto drained = reply_->events().drained;  // it may end the reply
      if (drained) drained();
    }
  }
  if (!writing_ && phase_ == Phase::kReply && reply_ && reply_->ended()) AfterReply();
}

void Connection::EndReply(bool close_connection) {
  if (close_connection) keep_alive_ = false;
  if (!writing_ && output_bytes() == 0 && phase_ == Phase::kReply) AfterReply();
}

// The reply is written: next request, or the end.
void Connection::AfterReply() {
  const bool again = keep_alive();
  ReleaseReply();
  if (!again) return Linger();
  BeginRequest(shared_.limits.idle_time_max);
  // Not from within the writer's call stack: what a pipelining client sent already comes next.
  asio::post(socket_.get_executor(), [self = Self()] {
    if (self->phase_ != Phase::kRequest) return;
    self->Guard([&] {
      self->Parse();
      self->Read();
    });
  });
}

void Connection::Linger() {
  if (read_ended_) return Close();
  phase_ = Phase::kLinger;
  error_code ec;
  socket_.shutdown(tcp::socket::shutdown_send, ec);
  read_deadline_ = Clock::now() + shared_.limits.linger_time_max;
  linger_end_ = Clock::now() + shared_.limits.request_time_max;
  dropped_bytes_ += buffer_.size();
  buffer_.consume(buffer_.size());
  Read();
}

// -- Ends

void Connection::ReleaseReply() {
  shared_.all_bodies_bytes -= body_bytes_;
  body_bytes_ = 0;
  if (!reply_) return;
  --shared_.active_requests;
  const auto reply = std::move(reply_);
  reply->Detach();
}

void Connection::Gone() {
  const auto self = Self();
  if (reply_ && !reply_->ended()) {
    const auto gone = reply_->events().gone;
    if (gone) gone();
  }
  Close();
}

// What the client has not taken by now is dropped: the system would keep some MB of it for as long
// as a client likes that reads a little at a time.
void Connection::Reset() {
  error_code ec;
  socket_.set_option(asio::socket_base::linger(true, 0), ec);
  Gone();
}

void Connection::Close() {
  if (phase_ == Phase::kClosed) return;
  phase_ = Phase::kClosed;
  ReleaseReply();
  error_code ec;
  socket_.close(ec);
  shared_.closed(shared_from_this());
}

// One connection's exception (memory is out, most likely) ends that connection.
void Connection::Guard(const auto& step) {
  const auto self = Self();
  try {
    return step();
  } catch (const std::exception&) {
  }
  try {
    Gone();
  } catch (const std::exception&) {
    Close();
  }
}

void Connection::Tick(Clock::time_point now) {
  Guard([&] { OnTick(now); });
}

void Connection::OnTick(Clock::time_point now) {
  if (phase_ == Phase::kClosed) return;
  if (now >= write_deadline_) return Reset();
  if (now >= read_deadline_) {
    if (phase_ == Phase::kRequest && request_begun_)
      return Refuse(408, "the request did not arrive in time");
    return Gone();
  }
  if (!reply_ || reply_->ended()) return;
  const auto tick = reply_->events().tick;
  if (tick) tick();
}

}  // namespace

std::shared_ptr<HttpConnection> HttpConnection::Create(tcp::socket socket, HttpShared& shared) {
  return std::make_shared<Connection>(std::move(socket), shared);
}

}  // namespace cairn
