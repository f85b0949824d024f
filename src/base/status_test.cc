#include "base/status.h"

#include <gtest/gtest.h>

#include "base/bytes.h"

namespace cairn {
namespace {

Result<int> Half(int x) {
  if (x % 2 != 0) return InvalidArgument("[half] odd");
  return x / 2;
}

Result<int> Quarter(int x) {
  ASSIGN_OR_RETURN(int half, Half(x));
  return Half(half);
}

TEST(Status, AssignOrReturnHandsOnTheFirstError) {
  EXPECT_EQ(*Quarter(12), 3);
  EXPECT_EQ(Quarter(6).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Quarter(5).status().message(), "[half] odd");
}

TEST(Bytes, SizesParse) {
  EXPECT_EQ(*ParseSize("0"), 0u);
  EXPECT_EQ(*ParseSize("512M"), 512ull << 20);
  EXPECT_EQ(*ParseSize("2GiB"), 2ull << 30);
  EXPECT_EQ(*ParseSize("8MiB"), 8ull << 20);
  EXPECT_EQ(*ParseSize("1kB"), 1000u);
  for (const char* bad : {"", "x", "-1", "12Q", "1e30", "nan", "5 MB x"})
    EXPECT_FALSE(ParseSize(bad).ok()) << bad;
}

TEST(Bytes, ProductsAreChecked) {
  EXPECT_EQ(CheckedMul(1ull << 32, 1ull << 31), 1ull << 63);
  EXPECT_FALSE(CheckedMul(1ull << 32, 1ull << 32).has_value());
  EXPECT_FALSE(CheckedAdd(UINT64_MAX, 1).has_value());
}

}  // namespace
}  // namespace cairn
