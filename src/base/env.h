// Facts about the machine: memory and limits. Threads: free functions, safe from any thread.
#pragma once

#include <cstdint>

namespace cairn {

// Bytes this process may use: the smaller of physical memory and the cgroup's limit (v2 memory.max,
// v1 limit_in_bytes).
uint64_t AvailableMemoryBytes();

// Resident set size of this process in bytes; 0 where /proc is not there. Allocates
// nothing.
uint64_t ResidentBytes();

}  // namespace cairn
