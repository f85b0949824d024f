// What this machine can do at most, measured now: the roof that benchmarks state their share of.
//
// Threads: runs on the caller's pool, about half a second; allocates 96 MiB a thread meanwhile.
#pragma once

#include "kernels/kernel_context.h"

namespace cairn {

struct Roof {
  double fma_gflops = 0;  // float32 fused multiply-adds, 2 operations each
  double int8_gops = 0;   // int8 products with the best instruction of the level, 2 operations each
  double read_gbps = 0;   // reading memory that no cache holds, GB/s; 0 if the system gave none
};

// All threads of ctx.pool at once, at ctx.level. The best of several short rounds, since other
// processes disturb.
Roof MeasureRoof(const KernelContext& ctx);

}  // namespace cairn
