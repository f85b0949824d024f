// Attention: equal in bits on every level, for every split of a sequence, batch and thread count;
// close to a plain double oracle; blind to whatever lies behind a row's position.
#include "kernels/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/bytes.h"

namespace cairn {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr KvType kKvTypes[] = {KvType::kF32, KvType::kF16, KvType::kQ8_0};

AttentionShape Shape(int heads, int kv_heads, int head_dim, KvType type) {
  return {heads, kv_heads, head_dim, 1.0f / std::sqrt(static_cast<float>(head_dim)), type};
}

// Inputs of one sequence, all positions: q and out [length, heads * head_dim], k and v [length,
// kv_heads * head_dim].
struct Sequence {
  int64_t length;
  std::vector<float> q, k, v, out;
};

Sequence RandomSequence(const AttentionShape& shape, int64_t length, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Sequence s{length, {}, {}, {}, {}};
  s.q.resize(length * shape.heads * shape.head_dim);
  s.k.resize(length * shape.kv_heads * shape.head_dim);
  s.v.resize(s.k.size());
  s.out.resize(s.q.size());
  for (auto* values : {&s.q, &s.k, &s.v}) {
    for (float& x : *values) x = normal(random);
  }
  return s;
}

// `count` positions of sequence `sequence`, continuing where it is.
struct Piece {
  int sequence;
  int count;
};
using Step = std::vector<Piece>;

struct RunOptions {
  CpuLevel level = DetectCpuLevel();
  int threads = 1;
  uint8_t unused_byte = 0xff;  // fills blocks before they are written: 0xff bytes are NaN
};

// Runs steps over a paged store of two layers, of which the second is used. Returns the bytes of
// the store, blocks of all sequences in order.
std::vector<std::byte> RunSteps(const AttentionShape& shape, std::vector<Sequence>& sequences,
                                const std::vector<Step>& steps, const RunOptions& options) {
  ThreadPool pool(options.threads);
  const KernelContext ctx{options.level, &pool};
  std::vector<std::vector<AlignedBuffer>> buffers(sequences.size());
  std::vector<std::vector<std::byte*>> blocks(sequences.size());
  std::vector<int64_t> positions(sequences.size());
  for (size_t i = 0; i < sequences.size(); ++i) {
    for (int64_t p = 0; p < sequences[i].length; p += kBlockPositions) {
      buffers[i].emplace_back(2 * shape.layer_bytes());
      std::memset(buffers[i].back().data(), options.unused_byte, 2 * shape.layer_bytes());
      blocks[i].push_back(buffers[i].back().data());
    }
  }
  const int64_t q_width = shape.heads * shape.head_dim;
  const int64_t kv_width = shape.kv_heads * shape.head_dim;
  const int64_t ldq = q_width + 8, ldkv = kv_width + 24, ldout = q_width + 3;
  for (const Step& step : steps) {
    int rows = 0;
    int64_t positions_max = 0;
    for (const Piece& piece : step) rows += piece.count;
    std::vector<float> q(rows * ldq, kNan), k(rows * ldkv, kNan), v(rows * ldkv, kNan);
    std::vector<float> out(rows * ldout, -7.0f);
    std::vector<AttentionSlice> slices;
    int row = 0;
    for (const Piece& piece : step) {
      const Sequence& s = sequences[piece.sequence];
      const int64_t position = positions[piece.sequence];
      const int64_t end = position + piece.count;
      EXPECT_LE(end, s.length);
      slices.push_back({row, piece.count, position,
                        std::span<std::byte* const>(blocks[piece.sequence])
                            .first((end + kBlockPositions - 1) / kBlockPositions),
                        shape.layer_bytes()});
      for (int64_t p = position; p < end; ++p, ++row) {
        std::copy_n(&s.q[p * q_width], q_width, &q[row * ldq]);
        std::copy_n(&s.k[p * kv_width], kv_width, &k[row * ldkv]);
        std::copy_n(&s.v[p * kv_width], kv_width, &v[row * ldkv]);
      }
      positions_max = std::max(positions_max, end);
    }
    StoreKv(ctx, shape, slices, k.data(), ldkv, v.data(), ldkv);
    AlignedBuffer scratch(AttentionScratchBytes(shape, rows, positions_max, options.threads));
    std::memset(scratch.data(), options.unused_byte, scratch.size());
    Attend(ctx, shape, slices, q.data(), ldq, out.data(), ldout, {scratch.data(), scratch.size()});
    for (size_t i = 0; i < step.size(); ++i) {
      Sequence& s = sequences[step[i].sequence];
      for (int r = 0; r < step[i].count; ++r) {
        const float* from = &out[(slices[i].row_begin + r) * ldout];
        std::copy_n(from, q_width, &s.out[(slices[i].position + r) * q_width]);
        for (int64_t c = q_width; c < ldout; ++c) EXPECT_EQ(from[c], -7.0f);
      }
      positions[step[i].sequence] += step[i].count;
    }
  }
  std::vector<std::byte> store;
  for (const auto& sequence : buffers) {
    for (const AlignedBuffer& b : sequence)
      store.insert(store.end(), b.data(), b.data() + b.size());
  }
  return store;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// The whole of each sequence alone, in one step.
void RunWhole(const AttentionShape& shape, Sequence& sequence, const RunOptions& options) {
  std::vector<Sequence> one = {std::move(sequence)};
  RunSteps(shape, one, {{{0, static_cast<int>(one[0].length)}}}, options);
  sequence = std::move(one[0]);
}

// Random steps that end when all sequences are done: 1 .. rows_max rows of a random subset.
std::vector<Step> RandomSteps(const std::vector<Sequence>& sequences, int rows_max, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int64_t> left;
  for (const Sequence& s : sequences) left.push_back(s.length);
  std::vector<Step> steps;
  while (std::any_of(left.begin(), left.end(), [](int64_t n) { return n > 0; })) {
    Step step;
    for (size_t i = 0; i < sequences.size(); ++i) {
      if (left[i] == 0 || random() % 3 == 0) continue;
      const int64_t wanted = random() % 2 == 0 ? 1 : 1 + random() % rows_max;
      const int count = static_cast<int>(std::min(left[i], wanted));
      step.push_back({static_cast<int>(i), count});
      left[i] -= count;
    }
    std::shuffle(step.begin(), step.end(), random);
    if (!step.empty()) steps.push_back(step);
  }
  return steps;
}

double RoundToHalf(double x) {
  if (x == 0 || std::isnan(x)) return x;
  if (std::isinf(x)) return std::copysign(65504.0, x);
  const double quantum = std::ldexp(1.0, std::max(std::ilogb(x), -14) - 10);
  return std::clamp(std::nearbyint(x / quantum) * quantum, -65504.0, 65504.0);
}

// Rounds each run of `group` values of rows of head_dim to int8 times a bfloat16 scale, by the
// formula of attention.h.
void RoundToInt8(std::vector<float>& values, int head_dim, int group) {
  for (size_t row = 0; row < values.size(); row += head_dim) {
    for (int begin = 0; begin < head_dim; begin += group) {
      const int n = std::min(group, head_dim - begin);
      float* x = &values[row + begin];
      float amax = 0;
      for (int i = 0; i < n; ++i) amax = std::max(amax, std::fabs(x[i]));
      float scale = amax / 127;
      uint32_t bits;
      std::memcpy(&bits, &scale, sizeof bits);
      bits = (bits + 0xffff) / 0x10000 * 0x10000;
      std::memcpy(&scale, &bits, sizeof bits);
      for (int i = 0; i < n; ++i) x[i] = scale * std::nearbyintf(x[i] * (1 / scale));
    }
  }
}

// Softmax attention in double over K and V as the store rounds them (and q, for q8_0). Returns the
// largest error relative to its bound.
double ErrorShareOfBound(const AttentionShape& shape, const Sequence& sequence) {
  auto kv = [&](float x) { return shape.kv_type == KvType::kF16 ? RoundToHalf(x) : x; };
  Sequence s = sequence;
  const bool int8 = shape.kv_type == KvType::kQ8_0;
  if (int8) {
    for (float& x : s.q) x *= shape.scale;
    RoundToInt8(s.q, shape.head_dim, 32);
    for (float& x : s.q) x /= shape.scale;
    RoundToInt8(s.k, shape.head_dim, 32);
    RoundToInt8(s.v, shape.head_dim, shape.head_dim);
  }
  const int hd = shape.head_dim, group = shape.heads / shape.kv_heads;
  constexpr double kEps = 0x1p-24;
  double worst = 0;
  std::vector<double> score(s.length), expect(hd);
  for (int64_t p = 0; p < s.length; ++p) {
    for (int h = 0; h < shape.heads; ++h) {
      const float* q = &s.q[(p * shape.heads + h) * hd];
      double max = -kInf, min = kInf, magnitude = 0, sum = 0, v_max = 0;
      for (int64_t j = 0; j <= p; ++j) {
        const float* k = &s.k[(j * shape.kv_heads + h / group) * hd];
        double dot = 0, absolute = 0;
        for (int d = 0; d < hd; ++d) {
          dot += static_cast<double>(q[d]) * kv(k[d]);
          absolute += std::fabs(static_cast<double>(q[d]) * kv(k[d]));
        }
        score[j] = dot * shape.scale;
        magnitude = std::max(magnitude, absolute * shape.scale);
        max = std::max(max, score[j]);
        min = std::min(min, score[j]);
      }
      std::fill(expect.begin(), expect.end(), 0.0);
      for (int64_t j = 0; j <= p; ++j) {
        const double weight = std::exp(score[j] - max);
        sum += weight;
        for (int d = 0; d < hd; ++d) {
          const double v = kv(s.v[(j * shape.kv_heads + h / group) * hd + d]);
          expect[d] += weight * v;
          v_max = std::max(v_max, std::fabs(v));
        }
      }
      // Score: head_dim fma and the rounding of q * scale. p: e^(score error), the rounding of
      // score - max, Exp (2 eps), twice (segment and merge). Sum and output: one rounding per key
      // and three per merge. Numerator and denominator each: hence 2.
      const double score_error = (hd + 1) * kEps * magnitude;
      const double p_error = score_error + 2 * (max - min) * kEps + 4 * kEps;
      double bound =
          2 * v_max * (p_error + (p + 1 + 3 * (p / kSegmentPositions + 1)) * kEps) * 1.01;
      // q8_0: each w' is off by half a step, 1 / 65534 of the largest p * v_scale; v_max has 127 of
      // v_scale, and the sum of p is at least 1. Three more roundings a segment.
      if (int8) bound += v_max * ((p + 1) / 65534.0 + 6 * kEps) * 1.01;
      for (int d = 0; d < hd; ++d) {
        const double error = std::fabs(s.out[(p * shape.heads + h) * hd + d] - expect[d] / sum);
        worst = std::max(worst, error / bound);
      }
    }
  }
  return worst;
}

struct ShapeCase {
  int heads, kv_heads, head_dim;
  int64_t length;
};
// Group sizes around the register tile, head sizes with and without a tail, lengths around blocks
// and segments.
constexpr ShapeCase kShapes[] = {
    {8, 2, 16, 130}, {3, 1, 24, 257}, {4, 4, 32, 256},  {6, 2, 64, 65},   {7, 1, 8, 300},
    {2, 1, 256, 63}, {5, 1, 128, 64}, {12, 4, 40, 70},  {1, 1, 16, 1030}, {4, 1, 16, 513},
    {2, 2, 512, 20}, {16, 2, 96, 66}, {10, 5, 72, 100}, {1, 1, 8, 1},     {16, 1, 16, 300},
    {2, 1, 80, 255}, {8, 1, 576, 70}};

TEST(AttentionTest, LevelsAreEqualInBits) {
  uint32_t seed = 1;
  for (const ShapeCase& c : kShapes) {
    for (KvType type : kKvTypes) {
      const AttentionShape shape = Shape(c.heads, c.kv_heads, c.head_dim, type);
      std::vector<Sequence> base = {RandomSequence(shape, c.length, ++seed),
                                    RandomSequence(shape, c.length / 2 + 1, ++seed)};
      const std::vector<Step> steps = RandomSteps(base, 90, seed);
      std::vector<Sequence> scalar = base;
      const auto store = RunSteps(shape, scalar, steps, {.level = CpuLevel::kScalar});
      for (CpuLevel level : SupportedCpuLevels()) {
        std::vector<Sequence> other = base;
        EXPECT_EQ(RunSteps(shape, other, steps, {.level = level}), store) << CpuLevelName(level);
        for (size_t i = 0; i < base.size(); ++i) {
          EXPECT_TRUE(SameBits(other[i].out, scalar[i].out))
              << CpuLevelName(level) << " head_dim " << c.head_dim << " heads " << c.heads << " "
              << KvTypeName(type);
        }
      }
    }
  }
}

TEST(AttentionTest, EverySplitBatchAndThreadCountGivesTheBitsOfTheWhole) {
  uint32_t seed = 100;
  for (const ShapeCase& c : kShapes) {
    for (KvType type : kKvTypes) {
      const AttentionShape shape = Shape(c.heads, c.kv_heads, c.head_dim, type);
      std::vector<Sequence> base = {RandomSequence(shape, c.length, ++seed),
                                    RandomSequence(shape, c.length / 3 + 1, ++seed),
                                    RandomSequence(shape, 17, ++seed)};
      std::vector<Sequence> whole = base;
      for (Sequence& s : whole) RunWhole(shape, s, {});
      for (int threads = 1; threads <= 4; ++threads) {
        const int rows_max = std::array{3, 8, 200}[(threads + seed) % 3];
        std::vector<Sequence> split = base;
        RunSteps(shape, split, RandomSteps(base, rows_max, ++seed), {.threads = threads});
        for (size_t i = 0; i < base.size(); ++i) {
          EXPECT_TRUE(SameBits(split[i].out, whole[i].out))
              << "head_dim " << c.head_dim << " threads " << threads << " rows " << rows_max;
        }
      }
    }
  }
}

// One row at a long context is cut into segments; 64 parts a thread make waves beyond 16,384.
TEST(AttentionTest, LongDecodeInWavesEqualsAWholeTile) {
  for (KvType type : {KvType::kF16, KvType::kQ8_0}) {
    const AttentionShape shape = Shape(2, 1, 16, type);
    Sequence base = RandomSequence(shape, 16900, 7);
    std::vector<Sequence> whole = {base};
    // The last 40 rows make tiles too large to be cut.
    RunSteps(shape, whole, {{{0, 16860}}, {{0, 40}}}, {});
    const size_t begin = 16860 * 32;
    for (int threads : {1, 3}) {
      std::vector<Sequence> decode = {base};
      std::vector<Step> steps = {{{0, 16860}}};
      for (int i = 0; i < 40; ++i) steps.push_back({{0, 1}});
      RunSteps(shape, decode, steps, {.threads = threads});
      EXPECT_EQ(std::memcmp(&decode[0].out[begin], &whole[0].out[begin], 40 * 32 * 4), 0);
    }
  }
}

TEST(AttentionTest, AgreesWithDoubleOracle) {
  uint32_t seed = 300;
  for (const ShapeCase& c : kShapes) {
    for (KvType type : kKvTypes) {
      const AttentionShape shape = Shape(c.heads, c.kv_heads, c.head_dim, type);
      Sequence s = RandomSequence(shape, c.length, ++seed);
      RunWhole(shape, s, {});
      EXPECT_LE(ErrorShareOfBound(shape, s), 1.0) << c.head_dim << " " << KvTypeName(type);
    }
  }
}

// Later segments with much larger or much smaller scores: the merge rescales in both directions.
TEST(AttentionTest, MergesSegmentsOfVeryDifferentScores) {
  for (KvType type : {KvType::kF32, KvType::kQ8_0}) {
    const AttentionShape shape = Shape(4, 2, 16, type);
    Sequence s = RandomSequence(shape, 1100, 11);
    for (int64_t p = 0; p < s.length; ++p) {
      const float factor = p / kSegmentPositions % 2 == 0 ? 0.1f : 6.0f;
      for (int i = 0; i < 32; ++i) s.k[p * 32 + i] *= factor;
    }
    RunWhole(shape, s, {.threads = 2});
    EXPECT_LE(ErrorShareOfBound(shape, s), 1.0);
  }
}

TEST(AttentionTest, UnusedRowsOfTheStoreNeverChangeABit) {
  for (KvType type : kKvTypes) {
    const AttentionShape shape = Shape(4, 2, 24, type);
    std::vector<Sequence> base = {RandomSequence(shape, 530, 21)};
    const std::vector<Step> steps = RandomSteps(base, 70, 22);
    std::vector<Sequence> nan = base;
    RunSteps(shape, nan, steps, {.threads = 2, .unused_byte = 0xff});
    for (int byte : {0x00, 0x7c, 0x7f, 0x80, 0x3c}) {
      std::vector<Sequence> other = base;
      RunSteps(shape, other, steps, {.threads = 2, .unused_byte = static_cast<uint8_t>(byte)});
      EXPECT_TRUE(SameBits(nan[0].out, other[0].out)) << byte;
    }
  }
}

TEST(AttentionTest, ALaterRowOfNanOrInfinityLeavesEarlierRowsAlone) {
  for (CpuLevel level : SupportedCpuLevels()) {
    for (int bad : {1, 15, 16, 63, 64, 65, 255, 256, 257, 300}) {
      const AttentionShape shape = Shape(3, 1, 16, KvType::kF32);
      Sequence clean = RandomSequence(shape, 320, 31);
      Sequence poisoned = clean;
      for (int d = 0; d < 16; ++d) {
        poisoned.k[bad * 16 + d] = d % 2 == 0 ? kNan : kInf;
        poisoned.v[bad * 16 + d] = d % 3 == 0 ? -kInf : kNan;
      }
      RunWhole(shape, clean, {.level = level});
      RunWhole(shape, poisoned, {.level = level});
      const size_t before = static_cast<size_t>(bad) * 3 * 16;
      EXPECT_EQ(std::memcmp(clean.out.data(), poisoned.out.data(), before * 4), 0) << bad;
      EXPECT_TRUE(std::isnan(poisoned.out[before])) << bad;
    }
  }
}

TEST(AttentionTest, FirstRowReturnsItsOwnValue) {
  const AttentionShape shape = Shape(4, 2, 32, KvType::kF32);
  Sequence s = RandomSequence(shape, 1, 41);
  RunWhole(shape, s, {});
  for (int h = 0; h < 4; ++h) EXPECT_EQ(std::memcmp(&s.out[h * 32], &s.v[h / 2 * 32], 32 * 4), 0);
}

TEST(StoreKvTest, RoundsToHalfAndTransposesKeys) {
  const AttentionShape shape = Shape(2, 2, 24, KvType::kF16);
  Sequence s = RandomSequence(shape, 100, 51);
  const float special[] = {0.0f,     -0.0f,    65504.0f,   65519.9f, 65520.0f,
                           -1e30f,   kInf,     -kInf,      0x1p-24f, 0x1p-25f,
                           0x3p-25f, 0x1p-26f, 1.0004883f, 1.00146f, 0x1p-14f};
  std::copy(std::begin(special), std::end(special), s.k.begin());
  std::copy(std::begin(special), std::end(special), s.v.begin());
  for (CpuLevel level : SupportedCpuLevels()) {
    std::vector<Sequence> one = {s};
    const auto store = RunSteps(shape, one, {{{0, 37}}, {{0, 63}}}, {.level = level});
    const size_t block_bytes = 2 * shape.layer_bytes();
    for (int64_t p = 0; p < 100; ++p) {
      for (int h = 0; h < 2; ++h) {
        const auto* head = reinterpret_cast<const uint16_t*>(store.data() + p / 64 * block_bytes +
                                                             shape.layer_bytes()) +
                           h * 2 * 24 * 64;
        for (int d = 0; d < 24; ++d) {
          auto value = [](uint16_t half) {
            const int exponent = half >> 10 & 31, mantissa = half & 1023;
            EXPECT_LT(exponent, 31);
            const double x = exponent == 0 ? std::ldexp(mantissa, -24)
                                           : std::ldexp(1024 + mantissa, exponent - 25);
            return (half & 0x8000) != 0 ? -x : x;
          };
          const size_t i = (p * 2 + h) * 24 + d;
          EXPECT_EQ(value(head[d * 64 + p % 64]), RoundToHalf(s.k[i]));
          EXPECT_EQ(value(head[24 * 64 + p % 64 * 24 + d]), RoundToHalf(s.v[i]));
        }
      }
    }
  }
}

TEST(StoreKvTest, Int8IsTheNearestMultipleOfItsScale) {
  const AttentionShape shape = Shape(2, 2, 40, KvType::kQ8_0);
  Sequence s = RandomSequence(shape, 100, 71);
  for (int i = 0; i < 40; ++i) {
    s.k[i] = 0;                                  // a zero row
    s.v[i] = (i % 2 == 0 ? 1 : -1) * 0x1p-110f;  // below the smallest scale
    s.k[80 + i] = 3e38f * (i % 3 - 1);           // the largest ones
    s.v[80 + i] = i == 7 ? 50.0f : 0.01f;        // one that spoils its row
  }
  Sequence rounded = s;
  RoundToInt8(rounded.k, 40, 32);
  RoundToInt8(rounded.v, 40, 40);
  for (int i = 0; i < 40; ++i) rounded.k[i] = rounded.v[i] = 0;
  for (CpuLevel level : SupportedCpuLevels()) {
    std::vector<Sequence> one = {s};
    const auto store = RunSteps(shape, one, {{{0, 37}}, {{0, 63}}}, {.level = level});
    for (int64_t p = 0; p < 100; ++p) {
      for (int h = 0; h < 2; ++h) {
        const std::byte* head = store.data() + p / 64 * 2 * shape.layer_bytes() +
                                shape.layer_bytes() + h * shape.head_bytes();
        for (int d = 0; d < 40; ++d) {
          const size_t i = (p * 2 + h) * 40 + d;
          EXPECT_EQ(StoredKey(shape, head, p % 64, d), rounded.k[i]) << p << " " << d;
          EXPECT_EQ(StoredValue(shape, head, p % 64, d), rounded.v[i]) << p << " " << d;
        }
      }
    }
  }
}

// A NaN or infinity in a row of K or V makes later rows NaN, and no earlier one.
TEST(AttentionTest, Int8StoreKeepsNanAndInfinityApart) {
  for (CpuLevel level : SupportedCpuLevels()) {
    for (const float bad : {kNan, kInf, -kInf}) {
      for (const bool in_v : {false, true}) {
        const AttentionShape shape = Shape(3, 1, 48, KvType::kQ8_0);
        Sequence clean = RandomSequence(shape, 90, 81);
        Sequence poisoned = clean;
        (in_v ? poisoned.v : poisoned.k)[70 * 48 + 33] = bad;
        RunWhole(shape, clean, {.level = level});
        RunWhole(shape, poisoned, {.level = level});
        const size_t before = 70 * 3 * 48;
        EXPECT_EQ(std::memcmp(clean.out.data(), poisoned.out.data(), before * 4), 0);
        for (size_t i = before; i < poisoned.out.size(); ++i)
          ASSERT_TRUE(std::isnan(poisoned.out[i])) << i;
      }
    }
  }
}

TEST(StoreKvTest, BytesPerPosition) {
  EXPECT_EQ(Shape(8, 2, 256, KvType::kF32).layer_bytes() / kBlockPositions, 4096u);
  EXPECT_EQ(Shape(8, 2, 256, KvType::kF16).layer_bytes() / kBlockPositions, 2048u);
  EXPECT_EQ(Shape(8, 2, 256, KvType::kQ8_0).layer_bytes() / kBlockPositions, 2u * (256 + 16 + 258));
  EXPECT_EQ(Shape(1, 1, 24, KvType::kQ8_0).layer_bytes() / kBlockPositions, 24u + 2 + 26);
}

TEST(StoreKvTest, NanStaysNan) {
  const AttentionShape shape = Shape(1, 1, 8, KvType::kF16);
  Sequence s = RandomSequence(shape, 1, 61);
  s.k[3] = s.v[5] = kNan;
  for (CpuLevel level : SupportedCpuLevels()) {
    std::vector<Sequence> one = {s};
    const auto store = RunSteps(shape, one, {{{0, 1}}}, {.level = level});
    const auto* half = reinterpret_cast<const uint16_t*>(store.data() + shape.layer_bytes());
    EXPECT_GT(half[3 * 64] & 0x7fff, 0x7c00);
    EXPECT_GT(half[8 * 64 + 5] & 0x7fff, 0x7c00);
  }
}

}  // namespace
}  // namespace cairn
