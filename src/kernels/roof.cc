#include "kernels/roof.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "kernels/panel_arena.h"
#include "kernels/roof_loops.h"

namespace cairn {
namespace {

constexpr int kRepeats = 5;
constexpr int kRounds = 200'000;
constexpr size_t kReadBytesPerThread = size_t{96} << 20;  // beyond any last-level cache share

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

float ScalarFma(int rounds) {
  float acc[8] = {0, 1, 2, 3, 4, 5, 6, 7};
  for (int r = 0; r < rounds; ++r) {
    for (float& a : acc) a = a * 0.999f + 0.001f;
  }
  float sum = 0;
  for (float a : acc) sum += a;
  return sum;
}

float ScalarInt8(int rounds) {
  int32_t acc[8] = {0, 1, 2, 3, 4, 5, 6, 7};
  for (int r = 0; r < rounds; ++r) {
    for (int32_t& a : acc) a = static_cast<int8_t>(a) * 3 + r;
  }
  int32_t sum = 0;
  for (int32_t a : acc) sum ^= a;
  return static_cast<float>(sum);
}

// Plain loads for every level: measured faster than wider ones with prefetch, and the memory is the
// limit.
float Read(const std::byte* data, size_t size_bytes) {
  uint64_t sum = 0;
  for (size_t i = 0; i + 8 <= size_bytes; i += 8) {
    uint64_t v;
    std::memcpy(&v, data + i, sizeof v);
    sum ^= v;
  }
  return static_cast<float>(sum);
}

RoofLoops LoopsFor(CpuLevel level) {
#if defined(__x86_64__)
  if (level == CpuLevel::kAvx512) return RoofLoopsAvx512();
  if (level == CpuLevel::kAvx2) return RoofLoopsAvx2();
#endif
  return RoofLoopsScalar();
}

// Best seconds of `job(thread)` run on all threads at once: each waits for the last one to wake, or
// else the first could do another's job too.
template <typename Job>
double BestSeconds(ThreadPool& pool, std::vector<float>& sink, Job job) {
  const int threads = pool.thread_count();
  double best = 1e9;
  for (int i = 0; i < kRepeats; ++i) {
    std::atomic<int> awake{0};
    std::atomic<double> start{0};
    pool.ParallelFor(threads, [&](int task, int) {
      if (awake.fetch_add(1) + 1 == threads) start = Seconds();
      while (start == 0) std::this_thread::yield();
      sink[task] += job(task);
    });
    best = std::min(best, Seconds() - start);
  }
  return best;
}

}  // namespace

RoofLoops RoofLoopsScalar() { return {ScalarFma, ScalarInt8, 16.0, 16.0}; }

Roof MeasureRoof(const KernelContext& ctx) {
  const RoofLoops loops = LoopsFor(ctx.level);
  const int threads = ctx.pool->thread_count();
  std::vector<float> sink(threads);
  Roof roof;
  const double fma = BestSeconds(*ctx.pool, sink, [&](int) { return loops.fma(kRounds); });
  roof.fma_gflops = loops.fma_ops_per_round * kRounds * threads / fma / 1e9;
  const double int8 = BestSeconds(*ctx.pool, sink, [&](int) { return loops.int8(kRounds); });
  roof.int8_gops = loops.int8_ops_per_round * kRounds * threads / int8 / 1e9;
  // In huge pages where there are any, as the weights are.
  PanelArena arena;
  const size_t memory_bytes = kReadBytesPerThread * static_cast<size_t>(threads);
  const auto memory = arena.Allocate(memory_bytes);
  if (!memory.ok()) return roof;  // read_gbps stays 0: unknown
  std::memset(memory->get(), 1, memory_bytes);
  const double read = BestSeconds(*ctx.pool, sink, [&](int t) {
    return Read(memory->get() + kReadBytesPerThread * t, kReadBytesPerThread);
  });
  roof.read_gbps = static_cast<double>(memory_bytes) / read / 1e9;
  return roof;
}

}  // namespace cairn
