// The engine's thread: what is submitted, commanded or asked from other threads reaches EngineCore
// between two steps.
#include "engine/engine.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

#include "base/bytes.h"
#include "base/log.h"
#include "engine/engine_core.h"
#include "engine/sequence.h"

namespace cairn {
namespace {

// One call of Run: lives on the caller's stack until done.
struct Command {
  std::function<void(EngineView&)>* run;
  bool done = false;
  Status status = {};
};

class ThreadedEngine : public Engine {
 public:
  ThreadedEngine(std::shared_ptr<const Model> model, EngineOptions options, EngineObserver observer)
      : model_(std::move(model)),
        options_(std::move(options)),
        observer_(std::move(observer)),
        core_(*model_, options_, observer_, stats_) {
    core_.UpdateGauges();
    thread_ = std::thread([this] { Main(); });
  }
  ~ThreadedEngine() override;

  Result<std::shared_ptr<TokenStream>> Submit(Request request,
                                              std::function<void()> wakeup) override;
  Status Run(std::function<void(EngineView&)> command) override;
  Status CheckBudget() const;
  void Drain() override;
  void CancelAll() override;
  bool healthy() const override { return alive() && stats_.faults_in_row < kFaultsInRowMax; }
  const EngineStats& stats() const override { return stats_; }
  const Model& model() const override { return *model_; }
  const EngineOptions& options() const override { return options_; }

 private:
  Status Check(const Request& request) const;
  uint64_t PinnedBytesAtLeast(const Request& request) const;
  void Main();
  void WaitForWork(bool busy);
  void TakeInbox();
  void RunCommands();
  void Turn();
  void RecoverFrom(const char* what) noexcept;
  bool alive() const { return alive_.load(std::memory_order_acquire); }

  const std::shared_ptr<const Model> model_;
  const EngineOptions options_;
  const EngineObserver observer_;
  EngineStats stats_;
  EngineCore core_;
  const std::shared_ptr<Doorbell> bell_ = std::make_shared<Doorbell>();
  std::atomic<bool> alive_{true}, draining_{false}, stop_{false}, cancel_all_{false};
  std::mutex mutex_;  // inbox_, commands_, next_id_
  std::condition_variable command_done_;
  std::deque<std::unique_ptr<Sequence>> inbox_;
  std::deque<Command*> commands_;
  uint64_t next_id_ = 1;
  bool stopped_ = false;  // the thread takes no more commands
  bool more_ = false;     // engine thread: the last step left work
  std::thread thread_;
};

ThreadedEngine::~ThreadedEngine() {
  draining_ = true;
  stop_ = true;
  bell_->Ring();
  thread_.join();
}

Status ThreadedEngine::Check(const Request& r) const {
  const int64_t n = static_cast<int64_t>(r.prompt.size());
  const int64_t context = model_->info().context_length;
  const int vocab = model_->info().vocab_size;
  if (n == 0) return InvalidArgument("[engine] the prompt is empty");
  if (n >= context)
    return {StatusCode::kContextLength, "request (" + std::to_string(n) +
                                            " tokens) exceeds the available context size (" +
                                            std::to_string(context) + " tokens)"};
  RETURN_IF_ERROR(core_.CheckFits(n, PinnedBytesAtLeast(r)));
  for (Token t : r.prompt)
    if (t < 0 || t >= vocab)
      return InvalidArgument("[engine] token " + std::to_string(t) + ", wanted 0 to " +
                             std::to_string(vocab - 1));
  if (r.max_tokens < 0)
    return InvalidArgument("[engine] max_tokens " + std::to_string(r.max_tokens) +
                           ", wanted at least 0");
  if (r.logprobs && (*r.logprobs < 0 || *r.logprobs > 20))
    return InvalidArgument("[engine] " + std::to_string(*r.logprobs) +
                           " top logprobs, wanted 0 to 20");
  return Status();
}

// What pins take from this prompt even if it begins like the longest of them; what it really shares
// is looked at in Enqueue.
uint64_t ThreadedEngine::PinnedBytesAtLeast(const Request& r) const {
  const uint64_t pinned = stats_.pinned_bytes;
  const int64_t shared = std::min(stats_.pinned_tokens.load(), std::ssize(r.prompt));
  return pinned - std::min(pinned, core_.SequenceBytes(shared) - core_.SequenceBytes(0));
}

Result<std::shared_ptr<TokenStream>> ThreadedEngine::Submit(Request request,
                                                            std::function<void()> wakeup) {
  RETURN_IF_ERROR(Check(request));
  const int64_t rest = model_->info().context_length - static_cast<int64_t>(request.prompt.size());
  const int64_t max_tokens = std::min(request.max_tokens, rest);
  std::shared_ptr<TokenStream> stream;
  {
    std::lock_guard lock(mutex_);
    // Asked under the lock: whoever sets these takes the inbox afterwards, so nothing slips past.
    if (!alive()) return Unavailable("[engine] stopped after a fault");
    if (draining_) return Unavailable("[engine] shutting down");
    // The inbox is only emptied under this lock, so no request is counted twice or not at all.
    if (static_cast<int64_t>(inbox_.size()) + stats_.in_engine >=
        static_cast<int64_t>(options_.queue_limit) + options_.decode_concurrency)
      return ResourceExhausted("[engine] the queue is full, " +
                               std::to_string(options_.queue_limit) + " requests wait");
    stream = std::make_shared<TokenStream>(bell_);
    if (wakeup) stream->SetWakeup(std::move(wakeup));
    inbox_.push_back(std::make_unique<Sequence>(next_id_, std::move(request), stream, max_tokens));
    ++next_id_;
    ++stats_.queue_length;
    ++stats_.requests;
  }
  bell_->Ring();
  return stream;
}

Status ThreadedEngine::Run(std::function<void(EngineView&)> command) {
  Command c{&command};
  std::unique_lock lock(mutex_);
  if (stopped_) return Unavailable("[engine] shutting down");
  commands_.push_back(&c);
  bell_->Ring();
  command_done_.wait(lock, [&] { return c.done; });
  return c.status;
}

Status ThreadedEngine::CheckBudget() const {
  if (core_.TokensThatFit() > 1) return Status();
  const EngineStats& s = stats_;
  return ResourceExhausted("[engine] a memory budget of " + FormatSize(options_.memory_budget) +
                           " leaves " + FormatSize(core_.pool_budget()) + " beside weights (" +
                           FormatSize(s.weight_bytes) + "), scratch (" +
                           FormatSize(s.scratch_bytes) + ") and the rest of the process (" +
                           FormatSize(s.other_bytes) + "); one sequence needs at least " +
                           FormatSize(core_.SequenceBytes(2)));
}

void ThreadedEngine::Drain() { draining_ = true; }

void ThreadedEngine::CancelAll() {
  draining_ = true;
  cancel_all_ = true;
  bell_->Ring();
}

void ThreadedEngine::Main() {
#if defined(__x86_64__)
  _mm_setcsr(0x1f80);  // as every worker of the pool: nearest, no flush of denormals
#endif
  while (!stop_) {
    try {
      Turn();
    } catch (const std::exception& e) {
      RecoverFrom(e.what());
    } catch (...) {
      RecoverFrom("an exception of unknown type");
    }
  }
  try {
    TakeInbox();
    core_.EndAll(Status());
  } catch (...) {  // each sequence tells its end when it is destroyed
  }
  std::lock_guard lock(mutex_);
  stopped_ = true;
  for (Command* c : commands_) {
    c->status = Unavailable("[engine] shutting down");
    c->done = true;
  }
  commands_.clear();
  command_done_.notify_all();
}

void ThreadedEngine::Turn() {
  WaitForWork(more_);
  RunCommands();
  if (!alive()) return;
  TakeInbox();
  if (cancel_all_.exchange(false)) {
    TakeInbox();  // what was submitted before CancelAll
    core_.EndAll(Status());
  }
  more_ = core_.Step();
}

// Sleeps until something was submitted, said or commanded, or until a deadline.
void ThreadedEngine::WaitForWork(bool busy) {
  std::unique_lock lock(bell_->mutex);
  if (!busy && !bell_->rung) {
    const auto wake = core_.NextWake();
    auto rung = [&] { return bell_->rung; };
    if (wake)
      bell_->rung_changed.wait_until(lock, *wake, rung);
    else
      bell_->rung_changed.wait(lock, rung);
  }
  bell_->rung = false;
}

void ThreadedEngine::TakeInbox() {
  std::lock_guard lock(mutex_);
  while (!inbox_.empty()) {
    std::unique_ptr<Sequence> sequence = std::move(inbox_.front());
    inbox_.pop_front();
    try {
      core_.Enqueue(std::move(sequence));
    } catch (const std::exception&) {  // its destructor has told the client
      --stats_.queue_length;
    }
  }
}

void ThreadedEngine::RunCommands() {
  std::unique_lock lock(mutex_);
  while (!commands_.empty()) {
    Command* c = commands_.front();
    commands_.pop_front();
    lock.unlock();
    std::exception_ptr failed;
    Status status = alive() ? Status() : Unavailable("[engine] stopped after a fault");
    if (status.ok()) {
      try {
        EngineView view = core_.View();
        (*c->run)(view);
        core_.UpdateGauges();
      } catch (const std::bad_alloc&) {  // maybe in the middle of a change
        failed = std::current_exception();
        status = Internal("out of memory");
      } catch (const std::exception& e) {
        status = Internal(std::string("[engine] command: ") + e.what());
      }
    }
    lock.lock();
    c->status = std::move(status);
    c->done = true;
    command_done_.notify_all();
    if (failed) std::rethrow_exception(failed);
  }
}

// What runs ends with an error; the engine goes on, or it refuses everything from now on and says
// so.
void ThreadedEngine::RecoverFrom(const char* what) noexcept {
  try {
    const Status error = Internal(std::string("[engine] a step failed: ") + what);
    LogError(error.ToString());
    const bool kept_cache = core_.Recover(error);
    core_.CheckInvariants();
    if (!kept_cache) LogWarning("[engine] the prompt cache was emptied");
    more_ = core_.waiting_count() > 0;
    return;
  } catch (...) {
  }
  more_ = false;
  alive_.store(false, std::memory_order_release);
  const Status error = Internal("engine failed");
  try {
    TakeInbox();  // what came in before that
    core_.EndAll(error);
  } catch (...) {  // those that are left are told when they are destroyed
  }
  if (observer_.fatal) observer_.fatal(error);
}

Status CheckOptions(const EngineOptions& o) {
  auto wrong = [](const char* what) { return InvalidArgument(std::string("[engine] ") + what); };
  if (o.threads < 1) return wrong("threads, wanted at least 1");
  if (o.decode_concurrency < 1) return wrong("decode_concurrency, wanted at least 1");
  if (o.prompt_concurrency < 1) return wrong("prompt_concurrency, wanted at least 1");
  if (o.queue_limit < 0) return wrong("queue_limit, wanted at least 0");
  if (o.step_rows_max < 1) return wrong("step_rows_max, wanted at least 1");
  if (o.logit_rows_max < o.decode_concurrency)
    return wrong("logit_rows_max, wanted at least decode_concurrency");
  if (o.cache.enabled() && o.cache.stride < 1) return wrong("stride, wanted at least 1");
  return Status();
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::Create(std::shared_ptr<const Model> model,
                                               EngineOptions options, EngineObserver observer) {
  if (model == nullptr) return InvalidArgument("[engine] no model");
  RETURN_IF_ERROR(CheckOptions(options));
  try {
    auto engine =
        std::make_unique<ThreadedEngine>(std::move(model), std::move(options), std::move(observer));
    RETURN_IF_ERROR(engine->CheckBudget());
    return std::unique_ptr<Engine>(std::move(engine));
  } catch (const std::exception& e) {
    return ResourceExhausted(std::string("[engine] start: ") + e.what());
  }
}

}  // namespace cairn
