// The random simulator (simulation.h). A failure prints the one command that shows it again.
//   CAIRN_SIM_SEED=n     that seed only
//   CAIRN_SIM_SEEDS=n    so many, from 1 (default 1,000)
//   CAIRN_SIM_SECONDS=s  how long fresh seeds are drawn (default 5)
#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <random>

#include "base/log.h"
#include "sim/simulation.h"

namespace {

// Of this test binary: the allocation that throws, counted down; 0: none.
int64_t allocations_to_go = 0;

void* Allocate(size_t size) {
  if (allocations_to_go > 0 && --allocations_to_go == 0) throw std::bad_alloc();
  void* p = std::malloc(size > 0 ? size : 1);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}

bool ArmHeapToFail(int64_t after) {
  const bool thrown = allocations_to_go == 0;
  allocations_to_go = after;
  return thrown;
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

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

volatile uint64_t seed_now = 0;  // of this test binary: for a CHECK that fails

std::string CommandFor(uint64_t seed) {
  return "CAIRN_SIM_SEED=" + std::to_string(seed) + " " + program_invocation_name +
         " --gtest_filter=EngineSim.Every*";
}

void SayHowOnAbort(int) {
  std::fprintf(stderr, "  %s\n", CommandFor(seed_now).c_str());
  std::signal(SIGABRT, SIG_DFL);
}

// False: something went wrong, and it is said what and how to see it again.
bool RunSeed(uint64_t seed, SimCoverage& coverage) {
  seed_now = seed;
  SetLogLevel(LogLevel::kOff);
  std::signal(SIGABRT, SayHowOnAbort);
  const std::string problem = Simulate(seed, SimPlant::kNone, &ArmHeapToFail, coverage);
  if (problem.empty()) return true;
  ADD_FAILURE() << problem << "\n  " << CommandFor(seed);
  return false;
}

void Print(const SimCoverage& c) {
  std::printf("requests %ld, completed %ld, cut %ld, refused %ld, cannot fit %ld\n",
              long(c.requests), long(c.completed), long(c.cut), long(c.refused), long(c.misfits));
  std::printf("too late %ld, failed %ld\n", long(c.too_late), long(c.failed));
  std::printf("full hits %ld, partial %ld, waits for a shared prefix %ld, faults %ld, pins %ld\n",
              long(c.full_hits), long(c.partial_hits), long(c.shared_waits), long(c.faults),
              long(c.pins));
  std::printf("evictions %ld, preemptions %ld, mid-block %ld, inner taps %ld, mixed steps %ld\n",
              long(c.evictions), long(c.preemptions), long(c.mid_block), long(c.taps_inside),
              long(c.mixed));
}

TEST(EngineSim, EveryAnswerEqualsThePlainRun) {
  const uint64_t one = FromEnvironment("CAIRN_SIM_SEED", 0);
  const uint64_t count = FromEnvironment("CAIRN_SIM_SEEDS", 1000);
  SimCoverage c;
  if (one > 0) {
    RunSeed(one, c);
    return;
  }
  for (uint64_t seed = 1; seed <= count; ++seed)
    if (!RunSeed(seed, c)) return;
  for (const int64_t happened : {c.completed, c.cut, c.refused, c.misfits, c.too_late, c.failed,
                                 c.full_hits, c.partial_hits, c.shared_waits, c.faults, c.pins,
                                 c.evictions, c.preemptions, c.mid_block, c.taps_inside, c.mixed})
    EXPECT_GT(happened, 0);
  EXPECT_GE(c.reasons.size(), 8u);  // all reasons but at most one, and null
  Print(c);
}

// Prompts that part, a full cache and finished answers, with each heap allocation failing in turn.
TEST(EngineSim, AnyAllocationMayFailAndTheEngineGoesOn) {
  for (const CachePolicy policy : {CachePolicy::kValue, CachePolicy::kLru}) {
    EngineOptions options = CoreDriver::SmallOptions();
    options.cache.policy = policy;
    options.cache.bytes_max = 40 << 10;
    bool failed = true;
    int64_t allocation = 0;
    while (failed && allocation < 20000) {
      CoreDriver d({.checks = false, .on_forward = {}}, options);
      const std::vector<Token> first = RandomTokens(1, 100);
      d.Run(first, 60);
      std::vector<std::shared_ptr<TokenStream>> streams;
      // This one ends inside the path that is there, and what it began from is dropped.
      streams.push_back(d.Submit(MakeRequest(first, 22)));
      for (int step = 0; step < 4; ++step) d.Step();
      for (const NodeInfo& node : d.core().tree().List())
        if (node.end == 100) d.core().tree().Drop(node.id);
      for (const size_t shared : {100, 70, 40}) {
        std::vector<Token> prompt(first.begin(), first.begin() + static_cast<ptrdiff_t>(shared));
        streams.push_back(d.Submit(MakeRequest(Join(prompt, RandomTokens(shared, 40)), 2)));
      }
      Request late = MakeRequest(RandomTokens(2, 20), 2);
      late.deadline_ms = 1e-6;
      streams.push_back(d.Submit(late));
      failed = false;
      allocations_to_go = ++allocation;
      for (int step = 0; step < 60 && d.stats().in_engine > 0; ++step) {
        try {
          d.core().Step();
        } catch (const std::bad_alloc&) {
          failed = true;
          d.core().Recover(Internal("out of memory"));
        }
      }
      allocations_to_go = 0;
      d.core().CheckInvariants();
      ASSERT_EQ(d.stats().in_engine, 0) << allocation;
      ASSERT_EQ(d.stats().queue_length, 0) << allocation;
      ASSERT_EQ(d.stats().slots_busy, 0) << allocation;
      d.Run(first);
    }
    EXPECT_GT(allocation, 50);
    EXPECT_FALSE(failed);
    std::printf("%ld allocations\n", long(allocation));
  }
}

TEST(EngineSim, FreshSeeds) {
  const auto end = std::chrono::steady_clock::now() +
                   std::chrono::seconds(FromEnvironment("CAIRN_SIM_SECONDS", 5));
  std::mt19937_64 draw(std::random_device{}());
  SimCoverage coverage;
  int count = 0;
  while (std::chrono::steady_clock::now() < end && RunSeed(draw() >> 1, coverage)) ++count;
  std::printf("%d fresh seeds\n", count);
}

TEST(EngineSim, PlantedBugsAreFoundWithin200Seeds) {
  for (const SimPlant plant : {SimPlant::kStaleBlock, SimPlant::kRandomBySlot}) {
    SimCoverage coverage;
    uint64_t seed = 1;
    while (seed <= 200 && Simulate(seed, plant, &ArmHeapToFail, coverage).empty()) ++seed;
    std::printf("plant %d: seed %lu\n", static_cast<int>(plant), static_cast<unsigned long>(seed));
    EXPECT_LE(seed, 200u);
  }
}

}  // namespace
}  // namespace cairn
