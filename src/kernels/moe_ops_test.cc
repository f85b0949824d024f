// The routing of a mixture of experts, its sums and its grouped matmul, in bits on every level.
#include "kernels/moe_ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/matmul_grouped.h"
#include "kernels/vector_ops.h"

namespace cairn {
namespace {

using Floats = std::vector<float>;

Floats Random(std::mt19937& random, size_t count, float scale = 1.0f) {
  std::normal_distribution<float> normal(0.0f, scale);
  Floats f(count);
  for (float& v : f) v = normal(random);
  return f;
}

bool SameBits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

struct Routes {
  std::vector<int32_t> ids;
  Floats weights;
};

Routes Route(CpuLevel level, int threads, const RouterShape& shape, Floats logits,
             const Floats& bias, int rows) {
  ThreadPool pool(threads);
  Routes out{std::vector<int32_t>(rows * shape.used), Floats(rows * shape.used)};
  RouteExperts({level, &pool}, shape, logits.data(), shape.experts,
               bias.empty() ? nullptr : bias.data(), rows, out.ids.data(), out.weights.data());
  return out;
}

TEST(RouteExperts, ChoosesTheLargestAndWeighsThemWithoutTheBias) {
  const int rows = 40;
  for (const int experts : {4, 6, 60, 128, 513}) {
    for (const RouterGate gate : {RouterGate::kSoftmax, RouterGate::kSigmoid}) {
      for (const bool with_bias : {false, true}) {
        const RouterShape shape{experts, std::min(experts, 4), gate, with_bias, 1e-20f, 2.5f};
        std::mt19937 random(experts);
        const Floats logits = Random(random, rows * experts, 2);
        const Floats bias = with_bias ? Random(random, experts, 0.3f) : Floats();
        const Routes routes = Route(CpuLevel::kScalar, 1, shape, logits, bias, rows);
        for (int r = 0; r < rows; ++r) {
          std::vector<double> p(logits.begin() + r * experts, logits.begin() + (r + 1) * experts);
          const double max = *std::max_element(p.begin(), p.end());
          double sum = 0;
          for (double& x : p) {
            x = gate == RouterGate::kSoftmax ? std::exp(x - max) : 1 / (1 + std::exp(-x));
            sum += x;
          }
          if (gate == RouterGate::kSoftmax)
            for (double& x : p) x /= sum;
          std::vector<int32_t> order(experts);
          std::iota(order.begin(), order.end(), 0);
          std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
            const auto value = [&](int e) { return p[e] + (with_bias ? bias[e] : 0.0); };
            return value(a) > value(b);
          });
          order.resize(shape.used);
          std::sort(order.begin(), order.end());
          double chosen = 0;
          for (const int e : order) chosen += p[e];
          for (int i = 0; i < shape.used; ++i) {
            EXPECT_EQ(routes.ids[r * shape.used + i], order[i]) << experts << " row " << r;
            const double want = p[order[i]] / (with_bias ? chosen : 1.0) * 2.5;
            EXPECT_NEAR(routes.weights[r * shape.used + i], want, 2e-6 * want);
          }
        }
      }
    }
  }
}

TEST(RouteExperts, TiesGoToTheLowerId) {
  const RouterShape shape{8, 3, RouterGate::kSoftmax, true, 0, 1};
  const Floats logits = {1, 2, 2, 1, 2, 2, 0, 2};
  EXPECT_EQ(Route(CpuLevel::kScalar, 1, shape, logits, {}, 1).ids, (std::vector<int32_t>{1, 2, 4}));
}

TEST(RouteExperts, NanStillNamesValidExperts) {
  const RouterShape shape{5, 2, RouterGate::kSigmoid, true, 0, 1};
  const Floats logits(5, std::nanf(""));
  EXPECT_EQ(Route(CpuLevel::kScalar, 1, shape, logits, {}, 1).ids, (std::vector<int32_t>{0, 1}));
}

TEST(RouteExperts, EveryLevelAndThreadCountGivesTheSameBits) {
  std::mt19937 random(5);
  for (const int experts : {6, 64, 100, 512}) {
    for (const RouterGate gate : {RouterGate::kSoftmax, RouterGate::kSigmoid}) {
      const RouterShape shape{experts, 6, gate, true, 1e-6f, 1.5f};
      const int rows = 70;
      const Floats logits = Random(random, rows * experts, 3), bias = Random(random, experts);
      const Routes want = Route(CpuLevel::kScalar, 1, shape, logits, bias, rows);
      for (const CpuLevel level : SupportedCpuLevels()) {
        const Routes got = Route(level, 3, shape, logits, bias, rows);
        EXPECT_EQ(got.ids, want.ids);
        EXPECT_TRUE(SameBits(got.weights, want.weights)) << CpuLevelName(level);
      }
    }
  }
}

TEST(CombineExperts, SumsInOrderOfTheSlotsListed) {
  std::mt19937 random(6);
  const int rows = 5, used = 3, slots = 15, n = 45;
  const Floats y = Random(random, slots * n), weights = Random(random, rows * used);
  const Floats shared = Random(random, rows * n), gate = Random(random, rows);
  std::vector<int32_t> slot(rows * used);
  for (int32_t& s : slot) s = static_cast<int32_t>(random() % slots);
  for (const bool with_shared : {false, true}) {
    for (const bool with_gate : {false, true}) {
      Floats want(rows * n);
      for (int r = 0; r < rows; ++r) {
        for (int c = 0; c < n; ++c) {
          float sum = 0;
          for (int i = 0; i < used; ++i)
            sum = std::fma(weights[r * used + i], y[slot[r * used + i] * n + c], sum);
          if (with_shared)
            sum = std::fma(with_gate ? SigmoidF(gate[r]) : 1.0f, shared[r * n + c], sum);
          want[r * n + c] = sum;
        }
      }
      for (const CpuLevel level : SupportedCpuLevels()) {
        ThreadPool pool(2);
        Floats out = shared;
        const SharedExpert expert{with_shared ? out.data() : nullptr,
                                  with_gate ? gate.data() : nullptr, 1};
        CombineExperts({level, &pool}, y.data(), slot.data(), weights.data(), rows, used, n, expert,
                       out.data());
        EXPECT_TRUE(SameBits(out, want)) << CpuLevelName(level);
      }
    }
  }
}

TEST(GeGlu, IsTheTanhFormOfGelu) {
  std::mt19937 random(8);
  const int rows = 3, n = 77;
  Floats gate_up = Random(random, rows * 2 * n, 3);
  const float inf = std::numeric_limits<float>::infinity();
  gate_up[0] = -inf;
  gate_up[1] = inf;
  gate_up[2] = -1e30f;
  gate_up[3] = 0.0f;
  Floats first;
  for (const CpuLevel level : SupportedCpuLevels()) {
    ThreadPool pool(2);
    Floats h(rows * n);
    GeGluRows({level, &pool}, gate_up.data(), 2 * n, rows, n, h.data());
    for (int r = 0; r < rows; ++r) {
      for (int i = 0; i < n; ++i) {
        const double x = gate_up[r * 2 * n + i], up = gate_up[r * 2 * n + n + i];
        if (!std::isfinite(x) || x < -1e20) continue;
        const double u = std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
        // Relative, with what cancels in 1 + tanh at negative x: 1 - |tanh| is the sigmoid's tail.
        const double want = x / (1 + std::exp(-2 * u)) * up;
        EXPECT_NEAR(h[r * n + i], want, 1e-5 * std::abs(want) + 1e-30) << x;
      }
    }
    EXPECT_EQ(std::abs(h[0]), 0);
    EXPECT_EQ(std::abs(h[1]), inf);
    EXPECT_EQ(std::abs(h[2]), 0);
    EXPECT_EQ(h[3], 0);
    if (first.empty()) first = h;
    EXPECT_TRUE(SameBits(h, first)) << CpuLevelName(level);
  }
}

TEST(ScaleRows, Multiplies) {
  std::mt19937 random(9);
  const Floats x = Random(random, 100);
  for (const CpuLevel level : SupportedCpuLevels()) {
    ThreadPool pool(1);
    Floats y = x;
    ScaleRows({level, &pool}, y.data(), 1.7f, 4, 25);
    for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(y[i], x[i] * 1.7f);
  }
}

TEST(GroupedMatMul, EachRowIsMatMuls) {
  std::mt19937 random(10);
  const int64_t n = 150, k = 64;
  const int counts[] = {3, 0, 1, 17, 40};
  const int rows = 61;
  const Floats x = Random(random, rows * k);
  for (const WeightType type : {WeightType::kF32, WeightType::kQ8_0, WeightType::kQ4_0}) {
    std::vector<PackedMatrix> experts;
    for (size_t e = 0; e < std::size(counts); ++e) {
      std::vector<std::byte> bytes(n * RowBytes(type, k));
      if (type == WeightType::kF32) {
        const Floats w = Random(random, n * k);
        std::memcpy(bytes.data(), w.data(), bytes.size());
      } else {
        const size_t block = type == WeightType::kQ8_0 ? 34 : 18;
        for (std::byte& b : bytes) b = static_cast<std::byte>(random());
        for (size_t at = 0; at < bytes.size(); at += block) bytes[at + 1] = std::byte{0x1c};
      }
      auto packed = PackedMatrix::Pack(type, n, k, bytes);
      ASSERT_TRUE(packed.ok());
      experts.push_back(std::move(*packed));
    }
    for (const CpuLevel level : SupportedCpuLevels()) {
      for (const int threads : {1, 3}) {
        ThreadPool pool(threads);
        const KernelContext ctx{level, &pool};
        AlignedBuffer memory(ActivationBytes(rows, k));
        const Activations a = IsQuantized(type) ? PrepareActivations(ctx, x.data(), rows, k,
                                                                     {memory.data(), memory.size()})
                                                : FloatActivations(x.data(), rows, k);
        std::vector<MatMulGroup> groups;
        Floats want(rows * n), got(rows * n);
        int begin = 0;
        for (size_t e = 0; e < experts.size(); ++e) {
          groups.push_back({&experts[e], begin, counts[e]});
          for (int r = begin; r < begin + counts[e]; ++r) {
            AlignedBuffer one(ActivationBytes(1, k));
            const Activations row = IsQuantized(type) ? PrepareActivations(ctx, &x[r * k], 1, k,
                                                                           {one.data(), one.size()})
                                                      : FloatActivations(&x[r * k], 1, k);
            MatMul(ctx, row, experts[e], &want[r * n], n);
          }
          begin += counts[e];
        }
        GroupedMatMul(ctx, a, groups, got.data(), n);
        EXPECT_TRUE(SameBits(got, want)) << CpuLevelName(level) << " " << threads;
      }
    }
  }
}

}  // namespace
}  // namespace cairn
