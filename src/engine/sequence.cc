#include "engine/sequence.h"

#include <algorithm>
#include <utility>

namespace cairn {
namespace {

// FNV-1a. Two keys with one hash share their share; nothing else depends on it.
uint64_t HashOfKey(const Request& r) {
  uint64_t hash = r.share_key.empty() ? 0xcbf29ce484222325ull : 0x84222325cbf29ce4ull;
  for (const char c : r.share_key.empty() ? r.cache_salt : r.share_key)
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return hash;
}

double Milliseconds(Clock::duration d) {
  return std::chrono::duration<double, std::milli>(d).count();
}

}  // namespace

Sequence::Sequence(uint64_t sequence_id, Request r, std::shared_ptr<TokenStream> s,
                   int64_t token_count_max)
    : id(sequence_id),
      request(std::move(r)),
      stream(std::move(s)),
      max_tokens(token_count_max),
      share_key(HashOfKey(request)),
      priority(request.priority) {
  tokens = request.prompt;
}

Sequence::~Sequence() {
  if (!end_told_) TellError(Internal("engine failed"));
  if (share != nullptr) share->Leave(share_key);
}

void Sequence::TellEnd(EndEvent end) noexcept {
  if (std::exchange(end_told_, true)) return;
  try {
    stream->Push(std::move(end));
  } catch (...) {  // the stream keeps room for its end: it is pushed, only the wakeup failed
  }
}

void Sequence::TellError(const Status& error) noexcept {
  if (end_told_) return;
  try {
    TellEnd(MakeEnd(FinishReason::kError, error));
  } catch (...) {  // no memory for the message; this one needs none
    TellEnd({.reason = FinishReason::kError,
             .error = Internal("out of memory"),
             .stop_token = {},
             .generated = tokens_sent});
  }
}

bool Sequence::ends_by(Token token, std::span<const Token> end_tokens) const {
  auto has = [token](std::span<const Token> list) {
    return std::find(list.begin(), list.end(), token) != list.end();
  };
  return has(request.stop_token_ids) || (!request.ignore_eos && has(end_tokens));
}

std::optional<Clock::time_point> Sequence::deadline() const {
  if (!(request.deadline_ms > 0)) return std::nullopt;
  return submitted + std::chrono::duration_cast<Clock::duration>(
                         std::chrono::duration<double, std::milli>(request.deadline_ms));
}

EndEvent Sequence::MakeEnd(FinishReason reason, Status error) const {
  const auto now = Clock::now();
  EndEvent end{.reason = reason, .error = std::move(error), .stop_token = stop_token};
  end.generated = tokens_sent;
  const bool was_admitted = reuse.has_value();
  end.queue_ms = Milliseconds((was_admitted ? admitted : now) - submitted);
  if (was_admitted) end.prefill_ms = Milliseconds((has_first_token ? first_token : now) - admitted);
  if (has_first_token) end.decode_ms = Milliseconds(now - first_token);
  return end;
}

}  // namespace cairn
