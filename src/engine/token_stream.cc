#include "engine/token_stream.h"

#include <algorithm>
#include <utility>

namespace cairn {

void Doorbell::Ring() {
  {
    std::lock_guard lock(mutex);
    rung = true;
  }
  rung_changed.notify_one();
}

TokenStream::TokenStream(std::shared_ptr<Doorbell> engine) : engine_(std::move(engine)) {
  events_.reserve(kEventsReserved);
}

std::optional<StreamEvent> TokenStream::Next(std::chrono::steady_clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  if (!pushed_.wait_until(lock, deadline, [&] { return read_ < events_.size(); }))
    return std::nullopt;
  StreamEvent event = std::move(events_[read_++]);
  if (read_ == events_.size()) {  // all read: start again at the front, keep the room
    events_.clear();
    read_ = 0;
  }
  return event;
}

std::vector<StreamEvent> TokenStream::Drain() {
  std::lock_guard lock(mutex_);
  std::vector<StreamEvent> out(std::make_move_iterator(events_.begin() + read_),
                               std::make_move_iterator(events_.end()));
  events_.clear();
  read_ = 0;
  return out;
}

void TokenStream::SetWakeup(std::function<void()> wakeup) {
  std::lock_guard lock(mutex_);
  wakeup_ = std::move(wakeup);
}

void TokenStream::Cancel() {
  cancelled_.store(true, std::memory_order_release);
  if (engine_) engine_->Ring();
}

void TokenStream::End(int64_t kept) {
  kept_.store(std::max<int64_t>(0, kept), std::memory_order_release);
  if (engine_) engine_->Ring();
}

std::optional<int64_t> TokenStream::ended() const {
  const int64_t kept = kept_.load(std::memory_order_acquire);
  if (kept < 0) return std::nullopt;
  return kept;
}

void TokenStream::Push(StreamEvent event) {
  {
    std::lock_guard lock(mutex_);
    // Room for one more is kept, so that the end can be told even when memory is out.
    const bool is_end = std::holds_alternative<EndEvent>(event);
    if (!is_end && events_.size() + 2 > events_.capacity()) events_.reserve(2 * events_.capacity());
    events_.push_back(std::move(event));
  }
  pushed_.notify_one();
  if (wakeup_) wakeup_();  // set before Submit, so not raced
}

}  // namespace cairn
