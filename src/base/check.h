// CHECK: an invariant of our own code. It aborts with file and line. Never for users, files or the
// network.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace cairn {

[[noreturn]] inline void CheckFailed(const char* file, int line, const char* what) {
  std::fprintf(stderr, "%s:%d: CHECK failed: %s\n", file, line, what);
  std::abort();
}

}  // namespace cairn

#define CHECK(cond)                                               \
  do {                                                            \
    if (!(cond)) ::cairn::CheckFailed(__FILE__, __LINE__, #cond); \
  } while (0)
