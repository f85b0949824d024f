// One worker thread of low priority for what must not hold up the IO thread: parsing, rendering,
// encoding, and questions to the engine.
// Owns: the thread and the jobs that wait. Threads: Push from any thread.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace cairn {

class WorkQueue {
 public:
  explicit WorkQueue(size_t jobs_max);
  ~WorkQueue() { Close(); }
  // Waits for the job that runs; drops those that wait. Push takes none from now on.
  void Close();

  // False: full, and the job was not taken. Jobs run one after the other and should not
  // throw: nobody hears of it.
  [[nodiscard]] bool Push(std::function<void()> job);

 private:
  void Main();

  const size_t jobs_max_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace cairn
