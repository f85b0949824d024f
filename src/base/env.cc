#include "base/env.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
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
  const int file = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  char text[128] = {};  // "total resident ...", in pages
  const ssize_t size = read(file, text, sizeof text - 1);
  close(file);
  char* end = text;
  std::strtoull(text, &end, 10);
  if (size <= 0 || end == text) return 0;
  return std::strtoull(end, nullptr, 10) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace cairn
