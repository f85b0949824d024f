#include "state/state_layout.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

TEST(StateLayout, PlacesPartsOneAfterTheOther) {
  const StateLayout layout =
      StateLayout::Create({{0, Recurrent{100}}, {0, Conv{10}}, {1, FullKv{32}}, {2, FullKv{8}}}, 70)
          .value();
  EXPECT_EQ(layout.state_offset(0), 0u);
  EXPECT_EQ(layout.state_offset(1), 128u);  // aligned to 64
  EXPECT_EQ(layout.hidden_offset(), 192u);
  EXPECT_EQ(layout.buffer_bytes(), 192u + 128u);
  EXPECT_EQ(layout.state_bytes(), 110u);
  EXPECT_EQ(layout.kv_offset(2), 0u);
  EXPECT_EQ(layout.kv_offset(3), 32u * 64u);
  EXPECT_EQ(layout.kv_bytes_per_token(), 40u);
  EXPECT_EQ(layout.block_bytes(), 40u * 64u);
  EXPECT_FALSE(layout.trimmable());
}

TEST(StateLayout, OnlyFullKvIsTrimmable) {
  EXPECT_TRUE(StateLayout::Create({{0, FullKv{32}}}, 64).value().trimmable());
  EXPECT_FALSE(StateLayout::Create({{0, WindowKv{4, 32}}}, 64).value().trimmable());
  EXPECT_FALSE(StateLayout::Create({{0, FullKv{32}}, {1, Conv{8}}}, 64).value().trimmable());
}

TEST(StateLayout, AWindowIsARingOfTheBlocksItCanTouch) {
  const int windows[] = {1, 2, 64, 65, 66, 512};
  const int64_t blocks[] = {1, 2, 2, 2, 3, 9};
  for (size_t i = 0; i < std::size(windows); ++i) {
    const WindowKv window{windows[i], 10};
    EXPECT_EQ(window.blocks(), blocks[i]) << windows[i];
    const StateLayout layout = StateLayout::Create({{0, window}}, 64).value();
    EXPECT_EQ(layout.state_bytes(), static_cast<size_t>(blocks[i]) * 640);
    EXPECT_EQ(layout.kv_bytes_per_token(), 0u);
  }
}

TEST(StateLayout, RefusesSizesOutOfRange) {
  const size_t huge = size_t{1} << 50;
  const StateKind kinds[] = {FullKv{huge},   Recurrent{huge}, Conv{huge},
                             WindowKv{0, 8}, WindowKv{-1, 8}, WindowKv{1 << 30, size_t{1} << 30}};
  for (const StateKind& kind : kinds) {
    EXPECT_EQ(StateLayout::Create({{0, kind}}, 64).status().code(), StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(StateLayout::Create({}, huge).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace cairn
