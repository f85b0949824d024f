#include "cache/stride.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace cairn {
namespace {

struct Case {
  std::string name;
  std::vector<StatePart> parts;
  size_t hidden_bytes;
  int64_t stride;
};

StateLayout Layout(const Case& c) { return *StateLayout::Create(c.parts, c.hidden_bytes); }

// States at the published dimensions, 2 bytes a key or value channel.
std::vector<Case> Cases() {
  const size_t mib = size_t{1} << 20;
  return {
      {"Qwen3.5-0.8B",
       {{0, Recurrent{18 * mib}}, {0, Conv{18 * 6144 * 3 * 4}}, {3, FullKv{12288}}},
       4096,
       2048},
      {"bundled", {{0, Recurrent{125952}}, {1, FullKv{1024}}}, 512, 2048},
      {"Gemma-3-270M", {{0, WindowKv{512, 15 * 1024}}, {5, FullKv{3072}}}, 2560, 2048},
      {"Mamba2-370M", {{0, Recurrent{48 * mib}}}, 4096, 2048},
      {"LFM2-350M", {{0, Conv{10 * 2 * 1024 * 4}}, {2, FullKv{12288}}}, 4096, 256},
      {"LFM2-350M, f32 keys and values", {{0, Conv{81920}}, {2, FullKv{24576}}}, 4096, 128},
      {"tiny convolution", {{0, Conv{64}}, {2, FullKv{12288}}}, 64, 64},
      {"KV only", {{0, FullKv{12288}}}, 4096, 2048},
  };
}

TEST(AutoStride, FollowsTheLayout) {
  for (const Case& c : Cases()) EXPECT_EQ(AutoStride(Layout(c)), c.stride) << c.name;
}

TEST(AutoStride, MultiplesOf2048StayOnTheGrid) {
  for (const Case& c : Cases()) EXPECT_EQ(kStrideMax % AutoStride(Layout(c)), 0) << c.name;
}

TEST(AutoStride, IsTheLeastWithinTheShare) {
  for (const Case& c : Cases()) {
    const StateLayout layout = Layout(c);
    const int64_t stride = AutoStride(layout);
    if (stride < kStrideMax) {
      EXPECT_LE(GridShare(layout, stride), kGridShareMax) << c.name;
    }
    if (stride > kStrideMin && !layout.trimmable()) {
      EXPECT_GT(GridShare(layout, stride / 2), kGridShareMax) << c.name;
    }
  }
}

}  // namespace
}  // namespace cairn
