// The compute pool. The thread that calls ParallelFor is worker 0. Each worker begins with its own
// run of consecutive tasks, which often read consecutive memory, and then takes tasks from the ends
// of the others' runs; so who computes a task may change from run to run and must never change its
// result.
//
// Threads: ParallelFor is called by one thread at a time (the engine thread). Workers spin for at
// most 50 us after a job, then sleep, so an idle pool burns nothing. Every worker runs with the
// default MXCSR (no FTZ, no DAZ).
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace cairn {

class ThreadPool {
 public:
  // REQUIRES: thread_count >= 1. Throws std::system_error where the system has no more threads.
  explicit ThreadPool(int thread_count);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int thread_count() const { return static_cast<int>(workers_.size()) + 1; }

  // Runs fn(task, worker) for each task in [0, task_count); returns when all are done. worker is in
  // [0, thread_count()): an index for per-thread scratch. fn must not throw and must not call
  // ParallelFor. Allocates nothing.
  template <typename Fn>
  void ParallelFor(int task_count, Fn&& fn) {
    Run(
        task_count,
        [](void* f, int task, int worker) {
          (*static_cast<std::remove_reference_t<Fn>*>(f))(task, worker);
        },
        const_cast<void*>(static_cast<const void*>(&fn)));
  }

 private:
  using TaskFn = void (*)(void*, int task, int worker);
  void Run(int task_count, TaskFn fn, void* arg);
  void WorkerLoop(int worker);
  void Stop();
  void TakeTasks(int worker);
  void TakeAll(int owner, bool from_front, int worker);

  // Tasks [begin, end) that nobody has taken: begin | end << 32. A cache line of its own.
  struct alignas(64) TaskRun {
    std::atomic<uint64_t> range{0};
  };

  std::vector<TaskRun> runs_;  // by worker
  std::vector<std::thread> workers_;
  std::atomic<uint64_t> job_{0};  // generation; bumped to start a job
  std::atomic<int> running_{0};   // workers that have not finished the current job
  TaskFn fn_ = nullptr;
  void* arg_ = nullptr;
  std::atomic<bool> stop_{false};
  std::atomic<int> sleeping_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
};

// CPUs this process may use: the smaller of the affinity mask and the cgroup quota (rounded up), at
// least 1.
int AvailableCpuCount();

}  // namespace cairn
