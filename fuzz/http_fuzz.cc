// The bytes of one client's connection, through the real path: HTTP, routes, keys, request JSON,
// template, tokenizer, engine, replies. Only the socket is a pair and the model one that checks its
// own states. The first byte says how the bytes are cut into packets, the second what the client
// does at the end (kWaits, kTimePasses).

#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "fuzz.h"
#include "http_replies.h"
#include "server/api_server.h"
#include "server/http_connection.h"
#include "server/metrics.h"
#include "support/fake_model.h"

namespace cairn {
namespace {

using Clock = HttpConnection::Clock;

constexpr uint8_t kWaits = 1;       // for all replies; else it closes at once
constexpr uint8_t kTimePasses = 2;  // every deadline of the connection is over at the end
constexpr size_t kInputBytesMax = size_t{64} << 10;
constexpr size_t kOutputBytesMax = size_t{16} << 20;
constexpr int64_t kContextTokens = 128;
constexpr auto kHang = std::chrono::seconds(15);
constexpr char kAdminKey[] = "k";  // the corpus knows it
constexpr char kTemplate[] =
    "{%- for m in messages -%}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|im_start|>assistant\n{% if enable_thinking %}<think>"
    "{% endif %}{%- endif -%}";

[[noreturn]] void Fail(const char* what) {
  std::fprintf(stderr, "http_fuzz: %s\n", what);
  std::abort();
}

// A vocabulary of bytes.
TokenizerSpec ByteTokens() {
  TokenizerSpec spec;
  spec.kind = TokenizerKind::kSentencePiece;
  spec.tokens = {"<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"};
  spec.types = {TokenType::kUnknown, TokenType::kControl, TokenType::kControl, TokenType::kControl,
                TokenType::kControl};
  for (const char* text : {"<think>", "</think>"}) {
    spec.tokens.emplace_back(text);
    spec.types.push_back(TokenType::kUserDefined);
  }
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", byte);
    spec.tokens.emplace_back(name);
    spec.types.push_back(TokenType::kByte);
  }
  spec.scores.assign(spec.tokens.size(), 0.0f);
  spec.unknown = 0;
  spec.bos = 1;
  spec.eos = 2;
  spec.eot = 4;
  return spec;
}

// The server's loop without a port: connections come as sockets.
class LoopServer : public HttpServer {
 public:
  int port() const override { return 0; }
  bool is_loopback() const override { return true; }
  void SetRefuser(Refuser refuser) override { shared.refuser = std::move(refuser); }
  void OnSignal(std::function<void()>) override {}
  void OnTick(std::function<void()>) override {}
  void Run(HttpHandler handler) override { shared.handler = std::move(handler); }
  void Post(std::function<void()> fn) override { boost::asio::post(io, std::move(fn)); }
  void StopAccepting() override {}
  int active_requests() const override { return shared.active_requests; }
  void Stop() override {}

  void Poll() {
    io.poll();
    io.restart();
  }
  void WaitAndPoll() {
    io.run_one_for(std::chrono::milliseconds(20));
    io.restart();
    Poll();
  }

  boost::asio::io_context io{1};
  HttpShared shared;
};

// The client's end of a socket pair.
class Peer {
 public:
  explicit Peer(int fd) : fd_(fd) {}
  ~Peer() { ::close(fd_); }

  // What the socket takes now; the rest of a client that the server does not read is lost.
  void Send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent <= 0) return;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
  }
  void Receive() {
    char buffer[16384];
    while (true) {
      const ssize_t got = ::recv(fd_, buffer, sizeof buffer, MSG_DONTWAIT);
      if (got <= 0) return;
      received_.append(buffer, static_cast<size_t>(got));
      if (received_.size() > kOutputBytesMax) Fail("an answer without end");
    }
  }
  void EndSending() { ::shutdown(fd_, SHUT_WR); }
  const std::string& received() const { return received_; }

 private:
  const int fd_;
  std::string received_;
};

class Target {
 public:
  Target();
  ~Target() { api_.Close(); }
  void Run(uint8_t cut, uint8_t end, std::string_view bytes);

 private:
  std::shared_ptr<HttpConnection> Connect(int fd);
  template <typename Done>
  void RunUntil(const char* what, Peer& peer, const Done& done);
  void SendAll(uint8_t cut, std::string_view bytes, Peer& peer);

  LoopServer server_;
  Metrics metrics_;
  std::shared_ptr<FakeModel> model_;
  ApiServer api_;
  const Engine* engine_ = nullptr;  // api_'s
  std::shared_ptr<HttpConnection> connection_;
};

ApiOptions Options() {
  ApiOptions options;
  options.access.admin_key = kAdminKey;
  return options;
}

Target::Target() : api_(server_, metrics_, Options()) {
  SetLogLevel(LogLevel::kOff);
  HttpShared& shared = server_.shared;
  shared.limits.header_bytes_max = 4096;
  shared.limits.body_bytes_max = 8192;
  shared.limits.all_bodies_bytes_max = 32768;
  shared.limits.output_bytes_max = 4096;
  shared.closed = [this](const auto&) { connection_.reset(); };
  server_.Run(
      [this](auto request, auto reply) { api_.Handle(std::move(request), std::move(reply)); });
  LoadedService service;
  service.tokenizer =
      std::make_shared<const Tokenizer>(std::move(Tokenizer::Create(ByteTokens())).value());
  service.template_source = kTemplate;
  service.prompts = std::make_shared<const PromptBuilder>(
      std::move(PromptBuilder::Create(service.tokenizer, {.template_source = kTemplate})).value());
  FakeModelOptions fake;
  fake.vocab_size = service.tokenizer->vocab_size();
  fake.context_length = kContextTokens;
  model_ = std::make_shared<FakeModel>(std::move(fake));
  EngineOptions options;
  options.cache.stride = 32;
  options.cache.bytes_max = 64 << 10;  // evictions too
  options.end_tokens.assign(service.tokenizer->end_of_generation().begin(),
                            service.tokenizer->end_of_generation().end());
  options.turn_headers = service.prompts->turn_headers().sequences;
  service.engine = std::move(Engine::Create(model_, options, metrics_.Observer())).value();
  service.model.name = service.model.architecture = "fake";
  service.model.context_length = kContextTokens;
  engine_ = service.engine.get();
  api_.Serve(std::move(service));
}

std::shared_ptr<HttpConnection> Target::Connect(int fd) {
  boost::asio::ip::tcp::socket socket(server_.io);
  socket.assign(boost::asio::ip::tcp::v4(), fd);
  return HttpConnection::Create(std::move(socket), server_.shared);
}

template <typename Done>
void Target::RunUntil(const char* what, Peer& peer, const Done& done) {
  const auto end = Clock::now() + kHang;
  while (!done()) {
    server_.WaitAndPoll();
    peer.Receive();
    if (Clock::now() > end) Fail(what);
  }
}

void Target::SendAll(uint8_t cut, std::string_view bytes, Peer& peer) {
  const size_t piece = cut == 0 ? bytes.size() : cut;
  while (!bytes.empty()) {
    const size_t count = std::min(piece, bytes.size());
    peer.Send(bytes.substr(0, count));
    bytes.remove_prefix(count);
    server_.Poll();
    peer.Receive();
  }
}

void Target::Run(uint8_t cut, uint8_t end, std::string_view bytes) {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0) Fail("no socket pair");
  const HttpShared& shared = server_.shared;
  connection_ = Connect(fds[0]);
  connection_->Start();
  Peer peer(fds[1]);
  SendAll(cut, bytes, peer);
  if (end & kWaits) {
    RunUntil("a request without an answer", peer, [&] { return shared.active_requests == 0; });
    server_.Poll();
    peer.Receive();
  }
  if ((end & kTimePasses) && connection_) {
    const auto connection = connection_;
    connection->Tick(Clock::now() + std::chrono::hours(1));
    server_.Poll();
  }
  peer.EndSending();
  for (int i = 0; i < 3; ++i) {
    server_.Poll();
    peer.Receive();
  }
  if (connection_) std::exchange(connection_, nullptr)->Close();
  RunUntil("the engine goes on without a client", peer, [&] {
    const EngineStats& s = engine_->stats();
    return s.slots_busy == 0 && s.queue_length == 0;
  });
  if (shared.active_requests != 0) Fail("a request is still counted");
  if (shared.all_bodies_bytes != 0) Fail("a body is still counted");
  if (engine_->stats().faults != 0) Fail("an exception in the engine");
  for (const std::string& violation : model_->violations()) Fail(violation.c_str());
  const bool whole = (end & kWaits) != 0 && (end & kTimePasses) == 0;
  if (const std::string wrong = CheckReplies(peer.received(), whole); !wrong.empty())
    Fail((wrong + "\n" + peer.received()).c_str());
}

}  // namespace
}  // namespace cairn

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static cairn::Target target;  // its threads take longer to start than an input to run
  if (size < 2) return 0;
  size = std::min(size, cairn::kInputBytesMax);
  target.Run(data[0], data[1], cairn::TextOf(data + 2, size - 2));
  return 0;
}
