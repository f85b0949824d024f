// A steady decode step allocates nothing from the heap. This binary counts every operator new of
// the stepping thread.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "support/engine_harness.h"

namespace {

std::atomic<int64_t> allocation_count{0};  // a counter of this test binary

void* Allocate(size_t size) {
  ++allocation_count;
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

}  // namespace
}  // namespace cairn
