#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace cairn {
namespace {

TEST(ThreadPool, EachTaskRunsOnceOnAKnownWorker) {
  for (int threads = 1; threads <= 4; ++threads) {
    ThreadPool pool(threads);
    for (int round = 0; round < 200; ++round) {
      const int n = round % 17;
      std::vector<int> hits(n, 0);
      pool.ParallelFor(n, [&](int task, int worker) {
        ASSERT_TRUE(worker >= 0 && worker < threads);
        hits[task]++;
      });
      EXPECT_EQ(std::accumulate(hits.begin(), hits.end(), 0), n);
      for (int h : hits) EXPECT_EQ(h, 1);
    }
  }
}

// A task that does not end until all others have: those behind it are taken by other workers.
TEST(ThreadPool, NoTaskWaitsForTheOneBeforeIt) {
  for (int threads = 2; threads <= 4; ++threads) {
    ThreadPool pool(threads);
    for (int round = 0; round < 50; ++round) {
      std::atomic<int> ended{0};
      pool.ParallelFor(16, [&](int task, int) {
        while (task == 0 && ended < 15) std::this_thread::yield();
        ++ended;
      });
      EXPECT_EQ(ended, 16);
    }
  }
}

TEST(ThreadPool, WakesFromSleep) {
  ThreadPool pool(3);
  for (int i = 0; i < 5; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::atomic<int> sum{0};
    pool.ParallelFor(100, [&](int task, int) { sum += task; });
    EXPECT_EQ(sum, 4950);
  }
}

}  // namespace
}  // namespace cairn
