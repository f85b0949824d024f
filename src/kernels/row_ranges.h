// Splits the rows of an element-wise kernel over the pool. Threads: fn runs on several at once,
// each with rows of its own.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/kernel_context.h"

namespace cairn {

// fn(begin, end) for ranges that cover [0, rows). Below about 10 us of work (32K elements) waking
// the pool costs more than it gains. Who computes a row never changes it.
template <typename Fn>
void ForRowRanges(const KernelContext& ctx, int rows, int64_t elements_per_row, Fn fn) {
  constexpr int64_t kSerialElements = 32768;
  constexpr int kTasksPerThread = 4;  // evens out unequal threads
  const int threads = ctx.pool->thread_count();
  if (rows < 2 || threads == 1 || rows * elements_per_row < kSerialElements) {
    if (rows > 0) fn(0, rows);
    return;
  }
  const int tasks = std::min(rows, threads * kTasksPerThread);
  ctx.pool->ParallelFor(tasks, [&](int task, int) {
    const auto border = [&](int t) { return static_cast<int>(int64_t{rows} * t / tasks); };
    fn(border(task), border(task + 1));
  });
}

}  // namespace cairn
