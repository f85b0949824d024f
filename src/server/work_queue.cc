#include "server/work_queue.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <exception>
#include <utility>

namespace cairn {
namespace {

// About a third of a busy compute thread's share: a long prompt is read at the cost of running
// streams, but not by much.
constexpr int kNice = 5;

}  // namespace

WorkQueue::WorkQueue(size_t jobs_max) : jobs_max_(jobs_max) {
  thread_ = std::thread([this] { Main(); });
}

void WorkQueue::Close() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

bool WorkQueue::Push(std::function<void()> job) {
  {
    std::lock_guard lock(mutex_);
    if (stop_ || jobs_.size() >= jobs_max_) return false;
    jobs_.push_back(std::move(job));
  }
  changed_.notify_one();
  return true;
}

void WorkQueue::Main() {
  // On Linux the nice value belongs to the thread. Where it may not be changed, nothing is lost.
  (void)setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), kNice);
  while (true) {
    std::function<void()> job;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stop_ || !jobs_.empty(); });
      if (stop_) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    try {
      job();
    } catch (const std::exception&) {  // whoever waits is told by its own job
    }
  }
}

}  // namespace cairn
