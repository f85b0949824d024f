// The way back: what the engine tells the handler of one request, and the two things the handler
// may tell the engine.
//
// Owns: a buffer of events, bounded by the request's max_tokens (the engine never waits for a
// reader). Threads: the engine thread pushes, one handler thread pulls; all members are safe for
// that pair.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/status.h"
#include "base/token.h"
#include "cache/miss_reason.h"

namespace cairn {

// What the cache did for a request; fixed once the sequence was prepared.
struct ReuseReport {
  int64_t prompt_tokens = 0;
  int64_t restore_point = 0;              // = cached_tokens
  int64_t matched = 0;                    // m; == prompt_tokens if all of it matched
  std::optional<MissReason> miss_reason;  // nullopt = null
  int64_t replayed_tokens() const { return prompt_tokens - restore_point; }
};

struct TokenLogprob {
  Token token;
  double logprob;  // log-softmax of the raw logits; sampler.h states its error
};

// The request left the queue and its reuse is known. Sent once, first; a preemption does not repeat
// it.
struct AdmittedEvent {
  ReuseReport reuse;
};
// After the Commit of every step that prefilled this request.
struct ProgressEvent {
  int64_t processed;  // prompt tokens in the state, restored ones included
  int64_t total;
};
struct PromptLogprobsEvent {  // echo with logprobs: one per prompt position >= 1, in order, before
                              // the first TokenEvent
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;
};
struct TokenEvent {
  Token token;
  std::optional<TokenLogprob> logprob;  // if Request::logprobs
  std::vector<TokenLogprob> top;        // sorted: higher first, ties by id
};
enum class FinishReason { kStop /* end token or stop id */, kLength, kCancelled, kError };
struct EndEvent {
  FinishReason reason;
  Status error;                     // if kError
  std::optional<Token> stop_token;  // the end token, not part of the text
  int64_t generated = 0;            // tokens sent as TokenEvent (the end token is not one)
  double queue_ms = 0, prefill_ms = 0, decode_ms = 0;
};
using StreamEvent =
    std::variant<AdmittedEvent, ProgressEvent, PromptLogprobsEvent, TokenEvent, EndEvent>;

// Wakes the engine thread when a handler said something. Shared, since a stream may outlive the
// engine.
struct Doorbell {
  std::mutex mutex;
  std::condition_variable rung_changed;
  bool rung = false;

  void Ring();
};

class TokenStream {
 public:
  // Room for the first kEventsReserved events is allocated here; a reader that keeps up never makes
  // Push allocate for the buffer.
  static constexpr size_t kEventsReserved = 64;
  explicit TokenStream(std::shared_ptr<Doorbell> engine = nullptr);

  // -- Handler side
  // Waits for the next event until `deadline`; nullopt on time-out. After an EndEvent no more
  // events come.
  std::optional<StreamEvent> Next(std::chrono::steady_clock::time_point deadline);
  // All events there are now, without waiting.
  std::vector<StreamEvent> Drain();
  // Called (from the engine thread, must be quick and must not throw) whenever an event is pushed.
  // Set before Submit.
  void SetWakeup(std::function<void()> wakeup);
  // The client is gone: stop within one step, keep what was computed.
  void Cancel();
  // The handler is done (a stop string matched, or all events were consumed): `kept` tokens belong
  // to the answer. The engine stops the sequence if it still runs, and publishes its finish
  // checkpoint only if it does not lie beyond prompt + kept.
  void End(int64_t kept);

  // -- Engine side
  void Push(StreamEvent event);
  bool cancelled() const { return cancelled_.load(std::memory_order_acquire); }
  std::optional<int64_t> ended() const;  // kept tokens, once End was called

 private:
  std::atomic<bool> cancelled_{false};
  std::atomic<int64_t> kept_{-1};  // -1 = End not called yet
  std::mutex mutex_;
  std::condition_variable pushed_;
  std::vector<StreamEvent> events_;  // [read_, size) are unread
  size_t read_ = 0;
  std::function<void()> wakeup_;
  const std::shared_ptr<Doorbell> engine_;
};

}  // namespace cairn
