#include "base/thread_pool.h"

#include <sched.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <string>

#include "base/check.h"

namespace cairn {
namespace {

constexpr auto kSpin = std::chrono::microseconds(50);

void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// The same floating-point environment in every thread: round to nearest, no flush of denormals, all
// exceptions masked.
void SetFloatEnvironment() {
#if defined(__x86_64__)
  _mm_setcsr(0x1f80);
#endif
}

// Spins until done() or kSpin is over. Returns done().
template <typename Done>
bool SpinFor(Done done) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  while (true) {
    for (int i = 0; i < 64; ++i) {
      if (done()) return true;
      Pause();
    }
    if (std::chrono::steady_clock::now() > end) return done();
  }
}

}  // namespace

ThreadPool::ThreadPool(int thread_count) : runs_(static_cast<size_t>(std::max(thread_count, 1))) {
  CHECK(thread_count >= 1);
  try {
    for (int i = 1; i < thread_count; ++i) workers_.emplace_back([this, i] { WorkerLoop(i); });
  } catch (...) {  // the system has no more threads: the ones there are must not be left running
    Stop();
    throw;
  }
}

ThreadPool::~ThreadPool() { Stop(); }

void ThreadPool::Stop() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    ++job_;
  }
  wake_.notify_all();
  for (auto& w : workers_) w.join();
}

void ThreadPool::Run(int task_count, TaskFn fn, void* arg) {
  if (task_count <= 0) return;
  fn_ = fn;
  arg_ = arg;
  if (task_count == 1 || workers_.empty()) {
    for (int t = 0; t < task_count; ++t) fn(arg, t, 0);
    return;
  }
  const uint64_t threads = runs_.size();
  for (uint64_t w = 0; w < threads; ++w) {
    const uint64_t begin = static_cast<uint64_t>(task_count) * w / threads;
    const uint64_t end = static_cast<uint64_t>(task_count) * (w + 1) / threads;
    runs_[w].range.store(begin | end << 32, std::memory_order_relaxed);
  }
  running_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  job_.fetch_add(1);  // seq_cst: ordered against sleeping_ below
  if (sleeping_.load() > 0) {
    std::lock_guard lock(mutex_);
    wake_.notify_all();
  }
  TakeTasks(0);
  auto done = [this] { return running_.load(std::memory_order_acquire) == 0; };
  // The others are inside their last task; on an oversubscribed machine one may be off its core, so
  // yield after the spin.
  while (!SpinFor(done)) std::this_thread::yield();
}

void ThreadPool::TakeTasks(int worker) {
  const int threads = static_cast<int>(runs_.size());
  TakeAll(worker, true, worker);
  for (int i = 1; i < threads; ++i) TakeAll((worker + i) % threads, false, worker);
}

// Until the run of `owner` is empty. No task is ever added to it, so it stays empty.
void ThreadPool::TakeAll(int owner, bool from_front, int worker) {
  std::atomic<uint64_t>& range = runs_[static_cast<size_t>(owner)].range;
  uint64_t seen = range.load(std::memory_order_relaxed);
  while (true) {
    const auto begin = static_cast<uint32_t>(seen), end = static_cast<uint32_t>(seen >> 32);
    if (begin >= end) return;
    const uint64_t rest = from_front ? seen + 1 : seen - (uint64_t{1} << 32);
    if (!range.compare_exchange_weak(seen, rest, std::memory_order_relaxed)) continue;
    fn_(arg_, static_cast<int>(from_front ? begin : end - 1), worker);
    seen = range.load(std::memory_order_relaxed);
  }
}

void ThreadPool::WorkerLoop(int worker) {
  SetFloatEnvironment();
  uint64_t seen = 0;
  while (true) {
    auto fresh = [&] { return job_.load() != seen; };  // seq_cst: after ++sleeping_ below
    if (!SpinFor(fresh)) {
      std::unique_lock lock(mutex_);
      ++sleeping_;
      wake_.wait(lock, fresh);
      --sleeping_;
    }
    if (stop_) return;
    seen = job_.load(std::memory_order_acquire);
    TakeTasks(worker);
    running_.fetch_sub(1, std::memory_order_release);
  }
}

int AvailableCpuCount() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int count = 1;
  if (sched_getaffinity(0, sizeof set, &set) == 0) count = std::max(1, CPU_COUNT(&set));
  std::string quota;
  double period = 0;
  if (std::ifstream f("/sys/fs/cgroup/cpu.max"); f >> quota >> period) {
    if (quota != "max" && period > 0) {
      const int limit = static_cast<int>(std::ceil(std::atof(quota.c_str()) / period));
      count = std::clamp(limit, 1, count);
    }
  }
  return count;
}

}  // namespace cairn
