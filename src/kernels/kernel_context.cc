#include "kernels/kernel_context.h"

namespace cairn {

const char* CpuLevelName(CpuLevel level) {
  switch (level) {
    case CpuLevel::kScalar:
      return "scalar";
    case CpuLevel::kAvx2:
      return "avx2";
    case CpuLevel::kAvx512:
      return "avx512";
  }
  return "unknown";
}

std::optional<CpuLevel> ParseCpuLevel(std::string_view name) {
  for (CpuLevel level : {CpuLevel::kScalar, CpuLevel::kAvx2, CpuLevel::kAvx512}) {
    if (name == CpuLevelName(level)) return level;
  }
  return std::nullopt;
}

CpuLevel DetectCpuLevel() { return SupportedCpuLevels().back(); }

std::vector<CpuLevel> SupportedCpuLevels() {
  std::vector<CpuLevel> levels = {CpuLevel::kScalar};
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
      !__builtin_cpu_supports("f16c"))
    return levels;
  levels.push_back(CpuLevel::kAvx2);
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512vnni")) {
    levels.push_back(CpuLevel::kAvx512);
  }
#endif
  return levels;
}

}  // namespace cairn
