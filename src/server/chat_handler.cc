#include "server/chat_handler.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <exception>
#include <functional>
#include <iterator>
#include <new>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "server/access.h"
#include "server/answer_text.h"
#include "server/openai_json.h"
#include "server/prepare_request.h"

namespace cairn {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kSilenceMax = std::chrono::seconds(10);  // then a comment; clients give up at 15
constexpr size_t kLoggedErrorMax = 200;

double Milliseconds(Clock::duration d) {
  return std::chrono::duration<double, std::milli>(d).count();
}

// An error of Submit, with the sizes of a prompt that is too long.
ApiError SubmitError(const Status& status, int64_t prompt_tokens, int64_t context_length) {
  ApiError error = ToApiError(status);
  if (status.code() == StatusCode::kContextLength) {
    error.n_prompt_tokens = prompt_tokens;
    error.n_ctx = context_length;
  }
  return error;
}

// One request. Lives as long as its connection waits for the reply, or until the reply is written.
class Generation : public std::enable_shared_from_this<Generation> {
 public:
  Generation(ServeContext& context, Route route, ApiReply reply)
      : context_(context), reply_(std::move(reply)) {
    head_.route = route;
  }

  void Start(std::shared_ptr<HttpRequest> http);

 private:
  // Outlives the generation: the engine may still ring when the client has gone.
  struct Bell {
    std::weak_ptr<Generation> generation;
    std::atomic<bool> rung{false};
  };

  void Guard(const auto& step);
  void PrepareOnWorker(const HttpRequest& http);
  void TakePrepared();
  void OnPrepared(PreparedRequest prepared);
  std::function<void()> Wakeup();
  void Begin();
  void OnEvents();
  void Handle(const AdmittedEvent& event);
  void Handle(const ProgressEvent& event);
  void Handle(const PromptLogprobsEvent& event);
  void Handle(const TokenEvent& event);
  void Handle(const EndEvent& event);
  void Echo();
  void Give(const AnswerText::Output& output);
  enum class Part { kReasoning, kContent };
  void SendPiece(Part part, std::string_view text, size_t token_count);
  void SendRest();
  void Finish(const EndEvent& end);
  void Fail(const ApiError& error);
  UsageInfo Usage(const EndEvent& end) const;
  Timings TimingsNow() const;
  void AddPromptEntry(const TokenLogprob& chosen, std::optional<double> logprob,
                      const std::vector<TokenLogprob>& top);
  TokenEntry Entry(const TokenLogprob& chosen, std::optional<double> logprob,
                   const std::vector<TokenLogprob>& top) const;
  void OnGone();
  void OnTick();
  void NoteFigures();
  void Data(std::string_view json);
  void Close();

  ServeContext& context_;
  ApiReply reply_;
  ReplyHead head_;
  bool gone_ = false, ended_ = false, streaming_ = false;
  std::atomic<bool> abandoned_{false};  // for the worker: nobody waits for the answer
  PreparedRequest prepared_;            // the worker's until is_prepared_
  std::atomic<bool> is_prepared_{false};

  GenerationRequest request_;
  std::optional<int> logprobs_;
  bool prompt_logprobs_ = false;
  int64_t prompt_tokens_ = 0;
  Token first_prompt_token_ = 0;
  std::string echo_;
  std::vector<int64_t> echo_offsets_;
  std::shared_ptr<TokenStream> stream_;
  std::optional<AnswerText> answer_;
  std::optional<TextOffsets> offsets_;
  bool stopped_ = false, echo_pending_ = false;

  ReuseReport reuse_;
  int64_t processed_ = 0;
  Clock::time_point admitted_, first_token_, last_write_;
  int64_t token_count_ = 0;  // received

  // What was received and not sent yet (a stream), or all of it (a whole reply).
  std::string text_, reasoning_;
  std::vector<TokenEntry> prompt_entries_, entries_;
  std::vector<Token> tokens_;
  size_t released_ = 0, sent_ = 0;  // tokens whose text was given out; that were sent
};

void Generation::Start(std::shared_ptr<HttpRequest> http) {
  const auto self = shared_from_this();
  reply_.http().SetEvents({.gone = [self] { self->OnGone(); },
                           .drained = [self] { self->Guard([&] { self->OnEvents(); }); },
                           .tick = [self] { self->Guard([&] { self->OnTick(); }); }});
  WorkQueue& work = context_.WorkFor(http->body.size());
  std::function<void()> job = [self, http = std::move(http)]() mutable {
    self->PrepareOnWorker(*http);
    http.reset();
    self->is_prepared_ = true;
    HttpServer& server = self->context_.http;
    try {
      server.Post([self] { self->Guard([&] { self->TakePrepared(); }); });
    } catch (const std::exception&) {  // no memory: the next tick looks, or nobody waits
      if (self->abandoned_ && self->is_prepared_.exchange(false)) --self->context_.preparing;
    }
  };
  ++context_.preparing;
  bool taken = false;
  try {
    taken = work.Push(std::move(job));
  } catch (const std::bad_alloc&) {  // not taken
  }
  if (taken) return;
  --context_.preparing;
  Fail(ToApiError(ResourceExhausted("[server] too many requests wait to be read")));
}

// An exception (memory is out, most likely) fails this request and no other.
void Generation::Guard(const auto& step) {
  const auto self = shared_from_this();
  try {
    return step();
  } catch (const std::exception&) {
  }
  if (stream_) stream_->Cancel();
  try {
    if (!ended_) return Fail(ToApiError(Internal("[server] out of memory")));
  } catch (const std::exception&) {
  }
  ended_ = true;
  Close();
  reply_.http().Abort();
}

// Worker.
void Generation::PrepareOnWorker(const HttpRequest& http) {
  if (abandoned_) return;
  try {
    prepared_ = PrepareRequest(context_, head_.route, http.body);
    if (prepared_.request) prepared_.request->engine.share_key = std::string(GivenKey(http));
  } catch (const std::bad_alloc&) {  // these texts need none
    prepared_.request.reset();
    prepared_.error.http_status = 500;
    prepared_.error.type = "server_error";
    prepared_.error.message = "out of memory";
  } catch (const std::exception& e) {
    prepared_ = {};
    prepared_.error = ToApiError(Internal(std::string("[server] ") + e.what()));
  }
}

void Generation::TakePrepared() {
  if (!is_prepared_.exchange(false)) return;
  --context_.preparing;
  if (gone_) return;
  OnPrepared(std::exchange(prepared_, {}));
}

void Generation::OnPrepared(PreparedRequest p) {
  if (!p.request) return Fail(p.error);
  request_ = std::move(*p.request);
  echo_ = std::move(p.echo);
  echo_offsets_ = std::move(p.echo_offsets);
  echo_pending_ = request_.echo;
  answer_.emplace(context_.loaded.tokenizer.get(), std::move(p.stops), p.reasoning);
  offsets_.emplace(context_.loaded.tokenizer.get(), true, CountCharacters(echo_));
  Request& r = request_.engine;
  logprobs_ = r.logprobs;
  prompt_logprobs_ = r.prompt_logprobs;
  prompt_tokens_ = reuse_.prompt_tokens = static_cast<int64_t>(r.prompt.size());
  if (!r.prompt.empty()) first_prompt_token_ = r.prompt[0];
  r.sampling.seed = request_.seed ? *request_.seed : context_.random();
  head_.id = (head_.route == Route::kChat ? "chatcmpl-" : "cmpl-") + context_.RandomDigits();
  head_.created = std::chrono::duration_cast<std::chrono::seconds>(
                      std::chrono::system_clock::now().time_since_epoch())
                      .count();
  head_.model = context_.model_id;
  r.id = head_.id;
  r.log_id = reply_.request_id();
  reply_.Note("completion", head_.id);
  reply_.Note("prompt_tokens", prompt_tokens_);
  auto stream = context_.loaded.engine->Submit(std::move(r), Wakeup());
  if (!stream.ok())
    return Fail(SubmitError(stream.status(), prompt_tokens_, context_.loaded.model.context_length));
  stream_ = *stream;
  admitted_ = last_write_ = Clock::now();
  if (request_.stream) Begin();
}

// Rings at most once until the IO thread has looked.
std::function<void()> Generation::Wakeup() {
  auto bell = std::make_shared<Bell>();
  bell->generation = weak_from_this();
  HttpServer& http = context_.http;
  return [bell, &http] {
    if (bell->rung.exchange(true)) return;
    try {
      http.Post([bell] {
        bell->rung = false;
        if (const auto g = bell->generation.lock()) g->Guard([&] { g->OnEvents(); });
      });
    } catch (const std::exception&) {  // no memory: the next tick looks
      bell->rung = false;
    }
  };
}

void Generation::Begin() {
  streaming_ = true;
  reply_.BeginEvents();
  if (head_.route == Route::kChat) Data(RoleChunkJson(head_));
}

void Generation::OnEvents() {
  const auto self = shared_from_this();  // the end drops the events that hold this
  while (stream_ && !gone_ && !ended_ && (!streaming_ || reply_.http().wants_more())) {
    const auto event = stream_->Next(Clock::time_point());
    if (!event) return;
    std::visit([this](const auto& e) { Handle(e); }, *event);
  }
}

void Generation::Handle(const AdmittedEvent& event) {
  reuse_ = event.reuse;
  processed_ = reuse_.restore_point;
  admitted_ = Clock::now();
}

void Generation::Handle(const ProgressEvent& event) {
  processed_ = event.processed;
  if (!streaming_ || !request_.return_progress) return;
  Data(ProgressChunkJson(head_, event.total, reuse_.restore_point, event.processed,
                         Milliseconds(Clock::now() - admitted_)));
}

void Generation::Handle(const PromptLogprobsEvent& event) {
  if (prompt_entries_.empty()) AddPromptEntry({first_prompt_token_, 0}, std::nullopt, {});
  AddPromptEntry(event.chosen, event.chosen.logprob, event.top);
}

void Generation::Handle(const TokenEvent& event) {
  if (stopped_) return;
  if (echo_pending_) Echo();
  if (token_count_++ == 0) first_token_ = Clock::now();
  if (event.logprob) {
    entries_.push_back(Entry(*event.logprob, event.logprob->logprob, event.top));
    entries_.back().text_offset = offsets_->Push(event.token);
  }
  if (request_.return_tokens) tokens_.push_back(event.token);
  const AnswerText::Output output = answer_->Push(event.token);
  Give(output);
  if (!output.stopped) return;
  stopped_ = true;
  stream_->End(static_cast<int64_t>(answer_->kept()));
}

void Generation::Handle(const EndEvent& event) {
  if (event.reason == FinishReason::kError && !stopped_) return Fail(ToApiError(event.error));
  if (event.reason == FinishReason::kCancelled && !stopped_)
    return Fail(ToApiError(Unavailable("[server] shutting down")));
  if (echo_pending_) Echo();
  if (!stopped_) {
    const AnswerText::Output output = answer_->Flush();
    Give(output);
    stopped_ = output.stopped;
    stream_->End(static_cast<int64_t>(answer_->kept()));
  }
  Finish(event);
}

// The prompt, in front of the answer.
void Generation::Echo() {
  echo_pending_ = false;
  if (prompt_logprobs_ && prompt_entries_.empty())  // a prompt of one token
    AddPromptEntry({first_prompt_token_, 0}, std::nullopt, {});
  if (!streaming_) return;
  ChunkExtra extra;
  extra.has_logprobs = logprobs_.has_value();
  extra.logprobs = prompt_entries_;
  extra.logprob_count = logprobs_.value_or(0);
  Data(TextChunkJson(head_, echo_, extra));
  prompt_entries_.clear();
}

void Generation::Give(const AnswerText::Output& output) {
  released_ = output.token_count;
  const ReasoningSplitter::Output& t = output.text;
  if (!streaming_) {
    reasoning_ += t.reasoning;
    text_ += t.content;
    return;
  }
  // A token that both parts share travels with the later one.
  if (!t.reasoning.empty())
    SendPiece(Part::kReasoning, t.reasoning, t.content.empty() ? released_ - sent_ : 0);
  if (!t.content.empty()) SendPiece(Part::kContent, t.content, released_ - sent_);
}

// A piece of text with the next `token_count` tokens.
void Generation::SendPiece(Part part, std::string_view text, size_t token_count) {
  ChunkExtra extra;
  extra.has_logprobs = logprobs_.has_value();
  extra.logprob_count = logprobs_.value_or(0);
  if (extra.has_logprobs) extra.logprobs = std::span(entries_).first(token_count);
  extra.has_tokens = request_.return_tokens;
  if (extra.has_tokens) extra.tokens = std::span(tokens_).first(token_count);
  const Timings timings = TimingsNow();
  if (request_.timings_per_token) extra.timings = &timings;
  Data(part == Part::kReasoning ? ReasoningChunkJson(head_, text, extra)
                                : TextChunkJson(head_, text, extra));
  const auto count = static_cast<std::ptrdiff_t>(token_count);
  if (extra.has_logprobs) entries_.erase(entries_.begin(), entries_.begin() + count);
  if (extra.has_tokens) tokens_.erase(tokens_.begin(), tokens_.begin() + count);
  sent_ += token_count;
}

// Tokens that no text followed: tags at the end, characters cut by the limit.
void Generation::SendRest() {
  const bool wanted = logprobs_.has_value() || request_.return_tokens;
  if (wanted && released_ > sent_) SendPiece(Part::kContent, "", released_ - sent_);
}

void Generation::Finish(const EndEvent& end) {
  const char* reason = stopped_ || end.reason == FinishReason::kStop ? "stop" : "length";
  const UsageInfo usage = Usage(end);
  NoteFigures();
  context_.metrics.CountTimes(end.prefill_ms / 1e3, end.decode_ms / 1e3);
  if (streaming_) {
    SendRest();
    Data(FinishChunkJson(head_, reason, request_.include_usage ? nullptr : &usage));
    if (request_.include_usage) Data(UsageChunkJson(head_, usage));
    ended_ = true;
    reply_.EndEvents();
    return Close();
  }
  WholeReply whole;
  whole.text = echo_ + text_;
  whole.reasoning = std::move(reasoning_);
  whole.finish_reason = reason;
  whole.usage = usage;
  if (logprobs_) {
    entries_.erase(entries_.begin() + static_cast<std::ptrdiff_t>(released_), entries_.end());
    std::move(entries_.begin(), entries_.end(), std::back_inserter(prompt_entries_));
    whole.logprobs = std::move(prompt_entries_);
    whole.logprob_count = *logprobs_;
  }
  if (request_.return_tokens) {
    tokens_.erase(tokens_.begin() + static_cast<std::ptrdiff_t>(released_), tokens_.end());
    whole.tokens = std::move(tokens_);
  }
  ended_ = true;
  reply_.Json(200, WholeReplyJson(head_, whole));
  Close();
}

void Generation::Fail(const ApiError& error) {
  if (ended_) return;
  ended_ = true;
  NoteFigures();
  reply_.Note("error", error.message.substr(0, kLoggedErrorMax));
  if (streaming_)
    reply_.FailEvents(error);
  else
    reply_.Error(error);
  Close();
}

UsageInfo Generation::Usage(const EndEvent& end) const {
  UsageInfo u;
  u.reuse = reuse_;
  u.completion_tokens = static_cast<int64_t>(answer_->kept());
  u.reasoning_tokens = static_cast<int64_t>(answer_->reasoning_tokens());
  u.timings = {.cache_n = reuse_.restore_point,
               .prompt_n = reuse_.replayed_tokens(),
               .predicted_n = u.completion_tokens,
               .prompt_ms = end.prefill_ms,
               .predicted_ms = end.decode_ms};
  return u;
}

Timings Generation::TimingsNow() const {
  return {.cache_n = reuse_.restore_point,
          .prompt_n = reuse_.replayed_tokens(),
          .predicted_n = token_count_,
          .prompt_ms = Milliseconds(first_token_ - admitted_),
          .predicted_ms = Milliseconds(Clock::now() - first_token_)};
}

void Generation::AddPromptEntry(const TokenLogprob& chosen, std::optional<double> logprob,
                                const std::vector<TokenLogprob>& top) {
  TokenEntry entry = Entry(chosen, logprob, top);
  entry.text_offset = echo_offsets_.at(prompt_entries_.size());
  prompt_entries_.push_back(std::move(entry));
}

TokenEntry Generation::Entry(const TokenLogprob& chosen, std::optional<double> logprob,
                             const std::vector<TokenLogprob>& top) const {
  const Tokenizer& tokenizer = *context_.loaded.tokenizer;
  TokenEntry entry{chosen.token, std::string(tokenizer.TokenBytes(chosen.token)), logprob};
  for (const TokenLogprob& t : top)
    entry.top.push_back({t.token, std::string(tokenizer.TokenBytes(t.token)), t.logprob});
  return entry;
}

void Generation::OnGone() {
  gone_ = true;
  abandoned_ = true;
  if (is_prepared_.exchange(false)) --context_.preparing;
  if (stream_) stream_->Cancel();
  NoteFigures();
  reply_.CountGone();
}

void Generation::OnTick() {
  // Their wakeups may have found no memory.
  TakePrepared();
  OnEvents();
  if (!streaming_ || ended_ || Clock::now() - last_write_ < kSilenceMax) return;
  reply_.Comment("keepalive " + std::to_string(processed_) + "/" + std::to_string(prompt_tokens_));
  last_write_ = Clock::now();
}

void Generation::Data(std::string_view json) {
  reply_.Data(json);
  last_write_ = Clock::now();
}

void Generation::NoteFigures() {
  if (prompt_tokens_ > 0) {
    reply_.Note("restore_point", reuse_.restore_point);
    reply_.Note("generated", token_count_);
  }
}

// The engine's side is over for us, whatever it still says.
void Generation::Close() { stream_.reset(); }

}  // namespace

void StartGeneration(ServeContext& context, Route route, std::shared_ptr<HttpRequest> request,
                     ApiReply reply) {
  std::make_shared<Generation>(context, route, std::move(reply))->Start(std::move(request));
}

}  // namespace cairn
