// Attention with a window: against a plain definition in double, and in bits for every level,
// chunking, thread count and store: a store of all blocks and a ring of the blocks a window needs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "base/bytes.h"
#include "kernels/attention.h"

namespace cairn {
namespace {

using Floats = std::vector<float>;

Floats Random(std::mt19937& random, size_t count) {
  std::normal_distribution<float> normal(0.0f, 1.0f);
  Floats f(count);
  for (float& v : f) v = normal(random);
  return f;
}

struct Problem {
  Problem(AttentionShape s, int positions) : shape(s), positions(positions) {
    std::mt19937 random(s.window);
    q = Random(random, static_cast<size_t>(positions) * s.heads * s.head_dim);
    k = Random(random, static_cast<size_t>(positions) * s.kv_heads * s.head_dim);
    v = Random(random, static_cast<size_t>(positions) * s.kv_heads * s.head_dim);
  }
  AttentionShape shape;
  int positions;
  Floats q, k, v;
};

enum class Store { kAll, kRing };

// Feeds the positions in pieces of at most `most`, which a ring cuts again at blocks.
Floats Attended(const Problem& p, CpuLevel level, int threads, int most, Store store,
                uint32_t seed) {
  const AttentionShape& s = p.shape;
  ThreadPool pool(threads);
  const KernelContext ctx{level, &pool};
  const int64_t q_width = int64_t{s.heads} * s.head_dim,
                kv_width = int64_t{s.kv_heads} * s.head_dim;
  const int64_t ring = (s.window + kBlockPositions - 2) / kBlockPositions + 1;
  const int64_t blocks = (p.positions + kBlockPositions - 1) / kBlockPositions;
  AlignedBuffer memory((store == Store::kAll ? blocks : ring) * s.layer_bytes());
  AlignedBuffer scratch(AttentionScratchBytes(s, p.positions, p.positions, threads));
  Floats out(p.q.size());
  std::mt19937 random(seed);
  for (int64_t begin = 0; begin < p.positions;) {
    int64_t count = std::min<int64_t>(p.positions - begin, 1 + random() % most);
    if (store == Store::kRing) count = std::min(count, kBlockPositions - begin % kBlockPositions);
    const int64_t first =
        store == Store::kAll ? 0 : std::max<int64_t>(0, begin - s.window + 1) / 256 * 4;
    std::vector<std::byte*> pointers;
    for (int64_t b = first; b * kBlockPositions < begin + count; ++b)
      pointers.push_back(memory.data() + (store == Store::kAll ? b : b % ring) * s.layer_bytes());
    const AttentionSlice slice[] = {{.row_begin = 0,
                                     .row_count = static_cast<int>(count),
                                     .position = begin,
                                     .blocks = pointers,
                                     .layer_offset = 0,
                                     .first_block = first}};
    StoreKv(ctx, s, slice, &p.k[begin * kv_width], kv_width, &p.v[begin * kv_width], kv_width);
    Attend(ctx, s, slice, &p.q[begin * q_width], q_width, &out[begin * q_width], q_width,
           {scratch.data(), scratch.size()});
    begin += count;
  }
  return out;
}

void ExpectNearDefinition(const Problem& p, const Floats& out, double limit) {
  const AttentionShape& s = p.shape;
  const int64_t d = s.head_dim;
  for (int64_t t = 0; t < p.positions; t += 37) {
    for (int h = 0; h < s.heads; ++h) {
      const float* q = &p.q[(t * s.heads + h) * d];
      const int kv = h / (s.heads / s.kv_heads);
      double sum = 0;
      std::vector<double> o(d, 0.0);
      for (int64_t j = std::max<int64_t>(0, t - s.window + 1); j <= t; ++j) {
        const float* k = &p.k[(j * s.kv_heads + kv) * d];
        double score = 0;
        for (int64_t i = 0; i < d; ++i) score += static_cast<double>(q[i]) * k[i];
        const double weight = std::exp(score * s.scale);
        sum += weight;
        for (int64_t i = 0; i < d; ++i) o[i] += weight * p.v[(j * s.kv_heads + kv) * d + i];
      }
      for (int64_t i = 0; i < d; ++i)
        ASSERT_NEAR(out[(t * s.heads + h) * d + i], o[i] / sum, limit) << t << " head " << h;
    }
  }
}

class AttentionWindow : public ::testing::TestWithParam<AttentionShape> {};

TEST_P(AttentionWindow, EveryLevelChunkingThreadCountAndStoreGivesTheSameBits) {
  const Problem p(GetParam(), 700);
  const Floats want = Attended(p, CpuLevel::kScalar, 1, 700, Store::kAll, 1);
  const double limits[] = {2e-6, 3e-3, 5e-2};
  ExpectNearDefinition(p, want, limits[static_cast<int>(p.shape.kv_type)]);
  for (const CpuLevel level : SupportedCpuLevels()) {
    for (const auto& [threads, most] : {std::pair{1, 1}, {2, 3}, {2, 90}, {3, 700}}) {
      for (const Store store : {Store::kAll, Store::kRing}) {
        if (level == CpuLevel::kScalar && threads == 3) continue;
        const Floats got = Attended(p, level, threads, most, store, 5);
        EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0)
            << CpuLevelName(level) << ", at most " << most << ", store " << int(store);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionWindow,
                         ::testing::Values(AttentionShape{4, 2, 16, 0.25f, KvType::kF32, 32},
                                           AttentionShape{4, 1, 32, 0.17f, KvType::kF16, 100},
                                           AttentionShape{2, 1, 64, 0.125f, KvType::kF16, 512},
                                           AttentionShape{4, 1, 32, 0.17f, KvType::kQ8_0, 64},
                                           AttentionShape{2, 2, 24, 0.2f, KvType::kF32, 1},
                                           AttentionShape{2, 1, 16, 0.25f, KvType::kF32, 5000}),
                         [](const auto& info) {
                           return std::string(KvTypeName(info.param.kv_type)) + "_window" +
                                  std::to_string(info.param.window);
                         });

}  // namespace
}  // namespace cairn
