// One seeded run of the engine, stepped by hand, under everything that may happen to it: arrivals
// in bursts that share prefixes, priorities, deadlines on a clock of its own, cancels and
// disconnects, stop strings, tiny pools, small limits and budgets, evictions, drops and pins at any
// time, allocations that fail (pools and heap). After each step the invariants are checked; each
// answer must equal the plain run of its request alone.
//
// Threads: one. The same seed gives the same run.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "support/engine_harness.h"

namespace cairn {

// What happened over all seeds: the simulator is worth something only if all of it did.
struct SimCoverage {
  int64_t requests = 0, completed = 0, cut = 0, refused = 0, misfits = 0, too_late = 0, failed = 0;
  int64_t full_hits = 0, partial_hits = 0, shared_waits = 0, faults = 0;
  int64_t evictions = 0, preemptions = 0, mid_block = 0, taps_inside = 0, mixed = 0, pins = 0;
  std::map<int, int64_t> reasons;
};

// Bugs to plant, to see that the simulator finds them.
enum class SimPlant {
  kNone,
  kStaleBlock,    // CacheFault::kStaleBlock: a restore inside a block takes an old version of it
  kRandomBySlot,  // TestFaults::random_by_slot: random numbers by the place in the batch
};

// Makes the heap allocation after so many more throw; 0: none does. Returns whether the last one
// that was armed has thrown.
using ArmHeap = bool (*)(int64_t after);

// The first thing that went wrong; empty: nothing.
std::string Simulate(uint64_t seed, SimPlant plant, ArmHeap arm_heap, SimCoverage& coverage);

}  // namespace cairn
