#include "base/env.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace cairn {
namespace {

uint64_t ReadLimit(const char* path) {
  std::ifstream f(path);
  std::string text;
  if (!(f >> text) || text == "max") return UINT64_MAX;
  try {
    return std::stoull(text);
  } catch (const std::exception&) {
    return UINT64_MAX;
  }
}

}  // namespace

uint64_t AvailableMemoryBytes() {
  const uint64_t physical =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return std::min({physical, ReadLimit("/sys/fs/cgroup/memory.max"),
                   ReadLimit("/sys/fs/cgroup/memory/memory.limit_in_bytes")});
}

uint64_t ResidentBytes() {
  std::ifstream f("/proc/self/statm");
  uint64_t total = 0, resident = 0;
  if (!(f >> total >> resident)) return 0;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace cairn
