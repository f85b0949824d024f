#include "base/env.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

TEST(Env, MemoryFactsAreSane) {
  EXPECT_GT(AvailableMemoryBytes(), 64ull << 20);
  EXPECT_GT(ResidentBytes(), 1ull << 20);
  EXPECT_LT(ResidentBytes(), AvailableMemoryBytes());
}

}  // namespace
}  // namespace cairn
