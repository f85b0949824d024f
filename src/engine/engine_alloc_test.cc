// A steady decode step allocates nothing from the heap, and a step whose allocation fails,
// whichever it is, ends what runs and leaves a sound engine. This binary counts every operator new
// and fails one on demand.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

#include "support/engine_harness.h"

namespace {

std::atomic<int64_t> allocation_count{0};    // a counter of this test binary
std::atomic<int64_t> failing_allocation{0};  // the number of the one that throws

void* Allocate(size_t size) {
  if (++allocation_count == failing_allocation) throw std::bad_alloc();
  void* p = std::malloc(size > 0 ? size : 1);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}

}  // namespace

void* operator new(size_t size) { return Allocate(size); }
void* operator new[](size_t size) { return Allocate(size); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
void operator delete[](void* p, size_t) noexcept { std::free(p); }

namespace cairn {
namespace {

TEST(EngineAllocation, ASteadyDecodeStepTakesNothingFromTheHeap) {
  for (const bool hybrid : {true, false}) {
    FakeModelOptions model;
    model.hybrid = hybrid;
    model.checks = false;
    EngineOptions options = CoreDriver::SmallOptions();
    options.cache.stride = 1000;
    CoreDriver d(model, options);
    std::vector<std::shared_ptr<TokenStream>> streams;
    for (int i = 0; i < 4; ++i) {
      Request r;
      r.prompt = RandomTokens(i, 100);
      r.max_tokens = 500;
      r.sampling.temperature = i % 2 ? 1.0f : 0.0f;
      r.sampling.top_p = 0.9f;
      r.sampling.repetition_penalty = 1.1f;
      streams.push_back(d.Submit(r));
    }
    for (int i = 0; i < 60; ++i) d.core().Step();  // prefill, and the first block borders
    int free_steps = 0;
    for (int i = 0; i < 40; ++i) {
      for (auto& s : streams)
        while (s->Next({}).has_value()) {
        }
      const int64_t before = allocation_count;
      d.core().Step();
      free_steps += allocation_count == before;
    }
    // A sequence's block table grows by doubling as it crosses a block border: rarer than a step in
    // sixteen here.
    EXPECT_GE(free_steps, 38);
    for (auto& s : streams) s->Cancel();
    d.RunUntilIdle();
  }
}

// A load that goes through everything a step does: restores, branches, marks, evictions,
// preemptions, stop strings, cancels.
class FaultyLoad {
 public:
  explicit FaultyLoad(bool hybrid) : driver_(Model(hybrid), Options()) {
    driver_.core().SetPoolLimits(24, 40);
  }

  // Runs it with the k-th allocation of its steps failing. False: there are not so many.
  bool Run(int64_t k) {
    int64_t left = k;
    for (int step = 0; step < 4000; ++step) {
      if (submitted_ < 14 && step % 2 == 0) Submit();
      const int64_t before = allocation_count;
      failing_allocation = left > 0 ? before + left : 0;
      const bool more = StepOrRecover();
      failing_allocation = 0;
      left = left > 0 ? left - (allocation_count - before) : 0;
      if (left <= 0 && k > 0) left = -1;
      if (step == 9) streams_[2]->Cancel();
      if (!more && submitted_ == 14) break;
    }
    driver_.RunUntilIdle();  // those that waited for their handler's word
    Check();
    return faulted_;
  }

 private:
  static FakeModelOptions Model(bool hybrid) {
    FakeModelOptions m;
    m.hybrid = hybrid;
    return m;
  }
  static EngineOptions Options() {
    EngineOptions o = CoreDriver::SmallOptions();
    o.cache.bytes_max = 60 << 10;
    o.closing_ms_max = 0;
    return o;
  }

  void Submit() {
    Request r;
    r.prompt = RandomTokens(submitted_ % 3, 150 + 20 * (submitted_ % 2));
    const auto tail = RandomTokens(100 + submitted_, 30);
    r.prompt.insert(r.prompt.end(), tail.begin(), tail.end());
    r.max_tokens = 60;
    r.logprobs = 2;
    r.has_stop_strings = submitted_ % 4 == 0;
    r.cache_prompt = submitted_ % 5 != 4;
    requests_.push_back(r);
    streams_.push_back(driver_.Submit(std::move(r)));
    ++submitted_;
  }

  bool StepOrRecover() {
    try {
      return driver_.core().Step();
    } catch (const std::bad_alloc&) {
      failing_allocation = 0;
      faulted_ = true;
    }
    driver_.core().Recover(Internal("out of memory"));
    driver_.core().CheckInvariants();
    return true;
  }

  void Check() {
    const EngineStats& s = driver_.stats();
    EXPECT_EQ(s.slots_busy + s.queue_length + s.in_engine, 0);
    EXPECT_EQ(s.live_bytes, 0u);
    EXPECT_EQ(s.faults, faulted_ ? 1u : 0u);
    for (size_t i = 0; i < streams_.size(); ++i) {
      Outcome got;
      got.AddAll(*streams_[i]);
      ASSERT_TRUE(got.end);
      const Outcome want = ExpectedOutcome(driver_.model(), requests_[i], {});
      const bool cut = got.end->reason != want.end->reason;
      EXPECT_TRUE(!cut || faulted_ || i == 2);
      EXPECT_EQ(Difference(got, want, cut), "");
    }
    driver_.Run(RandomTokens(1, 170), 5);  // and it still answers
  }

  CoreDriver driver_;
  int submitted_ = 0;
  bool faulted_ = false;
  std::vector<Request> requests_;
  std::vector<std::shared_ptr<TokenStream>> streams_;
};

TEST(EngineAllocation, AnyFailingOneEndsWhatRunsAndLeavesASoundEngine) {
  for (const bool hybrid : {true, false}) {
    int64_t k = 1, faults = 0;
    // Each of the first 600, then ever wider apart.
    for (; FaultyLoad(hybrid).Run(k); k += 1 + std::max<int64_t>(0, k - 600) / 20) ++faults;
    EXPECT_GT(faults, 500);
    EXPECT_FALSE(HasFailure()) << "allocation " << k;
  }
}

}  // namespace
}  // namespace cairn
