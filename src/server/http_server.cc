#include "server/http_server.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>

#include <atomic>
#include <csignal>
#include <exception>
#include <set>
#include <thread>
#include <utility>

#include "base/log.h"
#include "server/http_connection.h"

namespace cairn {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr auto kTick = std::chrono::milliseconds(200);
constexpr auto kAcceptPause = std::chrono::milliseconds(100);  // out of file descriptors
constexpr auto kFailurePause = std::chrono::milliseconds(10);
constexpr int kRefusedMax = 64;  // connections beyond the limit that still get an answer

void LogFailure(const std::exception& e) noexcept {
  try {
    LogError(std::string("[http] a handler failed: ") + e.what());
  } catch (...) {  // no memory for the line
  }
}

class AsioServer : public HttpServer {
 public:
  explicit AsioServer(const HttpLimits& limits)
      : acceptor_(io_), signals_(io_), tick_timer_(io_), accept_timer_(io_) {
    shared_.limits = limits;
    shared_.refuser = [](int, std::string_view message, std::string_view) {
      return HttpRefusal{std::string(message), {}};
    };
    shared_.closed = [this](const auto& connection) { connections_.erase(connection); };
  }
  ~AsioServer() override { CloseAll(); }

  Status Open(const std::string& host, int port);

  int port() const override { return port_; }
  bool is_loopback() const override { return is_loopback_; }
  void SetRefuser(Refuser refuser) override { shared_.refuser = std::move(refuser); }
  void OnSignal(std::function<void()> handler) override;
  void OnTick(std::function<void()> handler) override { on_tick_ = std::move(handler); }
  void Run(HttpHandler handler) override;
  void Post(std::function<void()> fn) override { asio::post(io_, std::move(fn)); }
  void StopAccepting() override;
  int active_requests() const override { return shared_.active_requests; }
  void Stop() override { io_.stop(); }

 private:
  void Arm();
  void Accept();
  void OnAccept(error_code ec, tcp::socket socket);
  void WaitForSignal();
  void Tick();
  void CloseAll();

  asio::io_context io_{1};
  HttpShared shared_;
  tcp::acceptor acceptor_;
  asio::signal_set signals_;
  asio::steady_timer tick_timer_, accept_timer_;
  std::function<void()> on_signal_, on_tick_;
  std::set<std::shared_ptr<HttpConnection>> connections_;
  bool accepting_ = false, ticking_ = false, awaiting_signal_ = false;  // armed
  int port_ = 0;
  bool is_loopback_ = false;
};

Status AsioServer::Open(const std::string& host, int port) {
  if (host.empty()) return InvalidArgument("[http] --host: empty, wanted an address");
  error_code ec;
  tcp::resolver resolver(io_);
  const auto found = resolver.resolve(host, std::to_string(port),
                                      tcp::resolver::passive | tcp::resolver::numeric_service, ec);
  if (ec || found.empty())
    return InvalidArgument("[http] --host " + host + ": " + ec.message() + ", wanted an address");
  const tcp::endpoint endpoint = *found.begin();
  const std::string where = host + ":" + std::to_string(port);
  acceptor_.open(endpoint.protocol(), ec);
  if (!ec) acceptor_.set_option(asio::socket_base::reuse_address(true), ec);
  if (!ec) acceptor_.bind(endpoint, ec);
  if (!ec) acceptor_.listen(asio::socket_base::max_listen_connections, ec);
  if (ec == asio::error::address_in_use)
    return InvalidArgument("[http] " + where + ": the port is in use; choose another with --port");
  if (ec) return InvalidArgument("[http] cannot listen on " + where + ": " + ec.message());
  port_ = acceptor_.local_endpoint(ec).port();
  is_loopback_ = endpoint.address().is_loopback();
  return Status();
}

void AsioServer::Run(HttpHandler handler) {
  shared_.handler = std::move(handler);
  while (true) {
    try {
      Arm();
      io_.run();
      return;
    } catch (const std::exception& e) {
      LogFailure(e);
      std::this_thread::sleep_for(kFailurePause);
    }
  }
}

// What must always wait for something, and does not because an exception came between.
void AsioServer::Arm() {
  if (!accepting_ && acceptor_.is_open()) Accept();
  if (!ticking_) Tick();
  if (!awaiting_signal_ && on_signal_) WaitForSignal();
}

void AsioServer::OnSignal(std::function<void()> handler) {
  on_signal_ = std::move(handler);
  error_code ec;
  signals_.add(SIGINT, ec);
  signals_.add(SIGTERM, ec);
  WaitForSignal();
}

void AsioServer::WaitForSignal() {
  signals_.async_wait([this](error_code ec, int) {
    awaiting_signal_ = false;
    if (ec) return;
    WaitForSignal();
    on_signal_();
  });
  awaiting_signal_ = true;
}

void AsioServer::StopAccepting() {
  error_code ec;
  acceptor_.close(ec);
  accept_timer_.cancel();
  shared_.stopping = true;
  const auto all = connections_;  // closing changes the set
  for (const auto& connection : all) connection->CloseIfIdle();
}

void AsioServer::Accept() {
  acceptor_.async_accept(
      [this](error_code ec, tcp::socket socket) { OnAccept(ec, std::move(socket)); });
  accepting_ = true;
}

void AsioServer::OnAccept(error_code ec, tcp::socket socket) {
  accepting_ = false;
  if (!acceptor_.is_open()) return;
  if (ec == asio::error::no_descriptors || ec == asio::error::no_buffer_space ||
      ec == asio::error::no_memory || ec == boost::system::errc::too_many_files_open_in_system) {
    accept_timer_.expires_after(kAcceptPause);
    accept_timer_.async_wait([this](error_code waited) {
      accepting_ = false;
      if (!waited) Accept();
    });
    accepting_ = true;
    return;
  }
  if (!ec) {
    const int count = static_cast<int>(connections_.size());
    if (count < shared_.limits.connections_max + kRefusedMax) {
      auto connection = HttpConnection::Create(std::move(socket), shared_);
      connections_.insert(connection);
      if (count < shared_.limits.connections_max)
        connection->Start();
      else
        connection->StartRefused();
    }
  }
  Accept();
}

void AsioServer::Tick() {
  ticking_ = false;
  const auto now = HttpConnection::Clock::now();
  const auto all = connections_;  // a tick may close
  for (const auto& connection : all) connection->Tick(now);
  if (on_tick_) on_tick_();
  tick_timer_.expires_after(kTick);
  tick_timer_.async_wait([this](error_code ec) {
    if (!ec) Tick();
  });
  ticking_ = true;
}

void AsioServer::CloseAll() {
  const auto all = connections_;
  for (const auto& connection : all) connection->Close();
}

}  // namespace

std::string_view HttpRequest::Header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return {};
}

Result<std::unique_ptr<HttpServer>> HttpServer::Listen(const std::string& host, int port,
                                                       const HttpLimits& limits) {
  auto server = std::make_unique<AsioServer>(limits);
  RETURN_IF_ERROR(server->Open(host, port));
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace cairn
