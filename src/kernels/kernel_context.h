// What every kernel call gets besides its spans: the CPU level and the compute pool. No kernel
// reads a global.
//
// Threads: a kernel that gets a context runs on its pool, so one call at a time
// (base/thread_pool.h), and returns when all is done; one that gets only a level runs on the
// calling thread. Ownership: kernels keep no pointer past the call.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"

namespace cairn {

class KernelFaults;

// The instruction sets kernels are written for. Results are equal in bits on every level
// (docs/exactness.md).
enum class CpuLevel {
  kScalar,
  kAvx2,    // AVX2 + FMA + F16C
  kAvx512,  // + AVX-512 F, BW, DQ, VL, VNNI
};

const char* CpuLevelName(CpuLevel level);                      // "scalar", "avx2", "avx512"
std::optional<CpuLevel> ParseCpuLevel(std::string_view name);  // nullopt for another name
CpuLevel DetectCpuLevel();                   // the best level of this CPU and operating system
std::vector<CpuLevel> SupportedCpuLevels();  // lowest first

// Borrowed by each call; `pool` outlives it.
struct KernelContext {
  CpuLevel level;
  ThreadPool* pool;
  const KernelFaults* faults = nullptr;  // only tests set it
};

}  // namespace cairn
