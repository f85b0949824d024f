// Every operation of vector_ops.h: equal in bits on every level, for any thread count and row
// split, and close to a plain double computation.
#include "kernels/vector_ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

namespace cairn {
namespace {

using Floats = std::vector<float>;

// The inputs of one random case. Rows of x, z have padding that no operation may touch.
struct Case {
  int rows, heads;
  int64_t n, head_stride, ld;
  Floats x, z, w, bias;  // x, z [rows, ld], w [n], bias [heads * n]
};

Case RandomCase(std::mt19937& random) {
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  Case c;
  c.rows = pick(1, 5);
  c.heads = pick(1, 6);
  c.n = pick(0, 3) == 0 ? 16 * pick(1, 8) : pick(1, 150);
  c.head_stride = pick(0, 1) == 0 ? c.n : 2 * c.n;
  c.ld = c.heads * c.head_stride + pick(0, 9);
  std::normal_distribution<float> normal(0.0f, 2.0f);
  const auto fill = [&](int64_t count) {
    Floats f(static_cast<size_t>(count));
    for (float& v : f) v = normal(random);
    return f;
  };
  c.x = fill(c.rows * c.ld + 16);
  c.z = fill(c.rows * c.ld + 16);
  c.w = fill(c.n);
  c.bias = fill(c.heads * c.n);
  return c;
}

// One operation: what it does to a copy of the case's buffers, and the same in double.
struct Operation {
  const char* name;
  std::function<Floats(const KernelContext&, const Case&)> run;
  std::function<std::vector<double>(const Case&)> exact;
  double tolerance;  // relative to the largest |value| of the result
};

// Sums of n <= 150 positive squares by 16 lanes lose at most (150 / 16 + 4) 2^-24 = 8e-7 relative;
// a root halves that, products and the division add 5 x 6e-8.
constexpr double kNormTolerance = 8e-7;
// The 3.5 ulp of vector_math.h and two products: 4.5 x 2^-23.
constexpr double kGateTolerance = 6e-7;

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// Applies fn(head data, r, h) to every head of a double copy of x at the case's strides.
std::vector<double> EachHead(const Case& c, const std::function<void(double*, int, int)>& fn) {
  std::vector<double> y(c.x.begin(), c.x.end());
  for (int r = 0; r < c.rows; ++r)
    for (int h = 0; h < c.heads; ++h) fn(y.data() + r * c.ld + h * c.head_stride, r, h);
  return y;
}

double MeanSquare(const double* x, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += x[i] * x[i];
  return sum / static_cast<double>(n);
}

Operation RmsNormHeadsOperation() {
  return {"RmsNormHeads",
          [](const KernelContext& ctx, const Case& c) {
            Floats y = c.x;
            RmsNormHeads(ctx, y.data(), c.ld, c.head_stride, c.w.data(), 1e-6f, c.rows, c.heads,
                         c.n);
            return y;
          },
          [](const Case& c) {
            return EachHead(c, [&](double* y, int, int) {
              const double s = 1 / std::sqrt(MeanSquare(y, c.n) + 1e-6);
              for (int64_t i = 0; i < c.n; ++i) y[i] *= s * c.w[i];
            });
          },
          kNormTolerance};
}

Operation L2NormHeadsOperation() {
  return {"L2NormHeads",
          [](const KernelContext& ctx, const Case& c) {
            Floats y = c.x;
            L2NormHeads(ctx, y.data(), c.ld, c.head_stride, 1e-6f, 0.25f, c.rows, c.heads, c.n);
            return y;
          },
          [](const Case& c) {
            return EachHead(c, [&](double* y, int, int) {
              const double s =
                  0.25 / std::sqrt(MeanSquare(y, c.n) * static_cast<double>(c.n) + 1e-6);
              for (int64_t i = 0; i < c.n; ++i) y[i] *= s;
            });
          },
          kNormTolerance};
}

Operation SigmoidGateHeadsOperation() {
  return {"SigmoidGateHeads",
          [](const KernelContext& ctx, const Case& c) {
            Floats y = c.x;
            SigmoidGateHeads(ctx, y.data(), c.ld, c.head_stride, c.z.data(), c.ld, c.head_stride,
                             c.rows, c.heads, c.n);
            return y;
          },
          [](const Case& c) {
            return EachHead(c, [&](double* y, int r, int h) {
              const float* z = c.z.data() + r * c.ld + h * c.head_stride;
              for (int64_t i = 0; i < c.n; ++i) y[i] *= Sigmoid(z[i]);
            });
          },
          kGateTolerance};
}

Operation GatedRmsNormHeadsOperation() {
  return {"GatedRmsNormHeads",
          [](const KernelContext& ctx, const Case& c) {
            Floats y = c.x;
            GatedRmsNormHeads(ctx, c.x.data(), c.ld, c.z.data(), c.ld, c.w.data(), 1e-6f, c.rows,
                              c.heads, c.n, y.data(), c.ld);
            return y;
          },
          [](const Case& c) {
            Case contiguous = c;
            contiguous.head_stride = c.n;
            return EachHead(contiguous, [&](double* y, int r, int h) {
              const float* z = c.z.data() + r * c.ld + h * c.n;
              const double s = 1 / std::sqrt(MeanSquare(y, c.n) + 1e-6);
              for (int64_t i = 0; i < c.n; ++i) y[i] *= s * c.w[i] * z[i] * Sigmoid(z[i]);
            });
          },
          kNormTolerance + kGateTolerance};
}

Operation RmsNormRowsOperation() {
  return {"RmsNormRows",
          [](const KernelContext& ctx, const Case& c) {
            Floats y(static_cast<size_t>(c.rows * c.n));
            RmsNormRows(ctx, c.x.data(), c.w.data(), 1e-5f, c.rows, c.n, y.data());
            return y;
          },
          [](const Case& c) {
            std::vector<double> y(c.x.begin(), c.x.begin() + c.rows * c.n);
            for (int r = 0; r < c.rows; ++r) {
              double* row = y.data() + r * c.n;
              const double s = 1 / std::sqrt(MeanSquare(row, c.n) + 1e-5);
              for (int64_t i = 0; i < c.n; ++i) row[i] *= s * c.w[i];
            }
            return y;
          },
          kNormTolerance};
}

Operation SwiGluRowsOperation() {
  return {"SwiGluRows",
          [](const KernelContext& ctx, const Case& c) {
            const int64_t n = c.ld / 2;
            Floats h(static_cast<size_t>(c.rows * n));
            SwiGluRows(ctx, c.x.data(), c.ld, c.rows, n, h.data());
            return h;
          },
          [](const Case& c) {
            const int64_t n = c.ld / 2;
            std::vector<double> h;
            for (int r = 0; r < c.rows; ++r) {
              for (int64_t i = 0; i < n; ++i) {
                const double gate = c.x[r * c.ld + i];
                h.push_back(gate * Sigmoid(gate) * c.x[r * c.ld + n + i]);
              }
            }
            return h;
          },
          kGateTolerance};
}

Operation AddRowsOperation() {
  return {"AddRows",
          [](const KernelContext& ctx, const Case& c) {
            Floats y = c.x;
            AddRows(ctx, y.data(), c.z.data(), static_cast<int64_t>(y.size()) - 5);
            return y;
          },
          [](const Case& c) {
            std::vector<double> y(c.x.begin(), c.x.end());
            for (size_t i = 0; i + 5 < y.size(); ++i) y[i] += c.z[i];
            return y;
          },
          6e-8};
}

Operation AddBiasOperation() {
  return {"AddBias",
          [](const KernelContext& ctx, const Case& c) {
            Floats y = c.x;
            AddBias(ctx, y.data(), c.ld, c.bias.data(), c.rows, c.heads * c.n);
            return y;
          },
          [](const Case& c) {
            std::vector<double> y(c.x.begin(), c.x.end());
            for (int r = 0; r < c.rows; ++r)
              for (int64_t i = 0; i < c.heads * c.n; ++i) y[r * c.ld + i] += c.bias[i];
            return y;
          },
          6e-8};
}

Operation CopyHeadsOperation() {
  return {"CopyHeads",
          [](const KernelContext& ctx, const Case& c) {
            Floats y(static_cast<size_t>(c.rows * c.heads * c.n));
            CopyHeads(ctx, c.x.data(), c.ld, c.head_stride, c.rows, c.heads, c.n, y.data(),
                      c.heads * c.n, c.n);
            return y;
          },
          [](const Case& c) {
            std::vector<double> y;
            for (int r = 0; r < c.rows; ++r)
              for (int h = 0; h < c.heads; ++h)
                for (int64_t i = 0; i < c.n; ++i)
                  y.push_back(c.x[r * c.ld + h * c.head_stride + i]);
            return y;
          },
          0};
}

// p = |a_neg| dt is rounded by 5 x 2^-23 relative, which moves exp(-p) by p exp(-p) 6e-7 <= 2.2e-7;
// rounding a + dt_bias moves it by at most 2^-24 / e; exp adds 1.2e-7, sigmoid 3e-7.
Operation DeltaGatesOperation() {
  return {"DeltaGates",
          [](const KernelContext& ctx, const Case& c) {
            const int decays = static_cast<int>(c.n), heads = (decays + 1) / 2;
            Floats a_neg = c.w;
            for (float& v : a_neg) v = -std::abs(v);
            Floats y(static_cast<size_t>(c.rows * (decays + heads)));
            DeltaGates(ctx, c.x.data(), c.ld, c.z.data(), c.ld, a_neg.data(), c.bias.data(), c.rows,
                       decays, heads, y.data(), y.data() + c.rows * decays);
            return y;
          },
          [](const Case& c) {
            std::vector<double> g, beta;
            for (int r = 0; r < c.rows; ++r) {
              for (int64_t h = 0; h < c.n; ++h) {
                const double dt = std::log1p(std::exp(c.x[r * c.ld + h] + c.bias[h]));
                g.push_back(std::exp(-std::abs(c.w[h]) * dt));
                if (h < (c.n + 1) / 2) beta.push_back(Sigmoid(c.z[r * c.ld + h]));
              }
            }
            g.insert(g.end(), beta.begin(), beta.end());
            return g;
          },
          1e-6};
}

std::vector<Operation> Operations() {
  return {RmsNormHeadsOperation(),      L2NormHeadsOperation(), SigmoidGateHeadsOperation(),
          GatedRmsNormHeadsOperation(), RmsNormRowsOperation(), SwiGluRowsOperation(),
          AddRowsOperation(),           AddBiasOperation(),     CopyHeadsOperation(),
          DeltaGatesOperation()};
}

KernelContext Context(CpuLevel level, ThreadPool& pool) { return {level, &pool}; }

bool SameBits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(VectorOps, EveryLevelEqualsScalarAndIsCloseToDouble) {
  std::mt19937 random(1);
  ThreadPool pool(1);
  const std::vector<Operation> operations = Operations();
  for (int round = 0; round < 150; ++round) {
    const Case c = RandomCase(random);
    for (const Operation& op : operations) {
      const Floats want = op.run(Context(CpuLevel::kScalar, pool), c);
      for (CpuLevel level : SupportedCpuLevels()) {
        ASSERT_TRUE(SameBits(op.run(Context(level, pool), c), want))
            << op.name << " " << CpuLevelName(level) << " n " << c.n;
      }
      const std::vector<double> exact = op.exact(c);
      ASSERT_EQ(exact.size(), want.size()) << op.name;
      double largest = 0;
      for (double v : exact) largest = std::max(largest, std::abs(v));
      for (size_t i = 0; i < exact.size(); ++i) {
        ASSERT_NEAR(want[i], exact[i], op.tolerance * largest) << op.name << " at " << i;
      }
    }
  }
}

// Rows enough for the pool to be used; and each row alone gives the bits it has among others.
TEST(VectorOps, ThreadsAndNeighboursDoNotChangeRows) {
  std::mt19937 random(2);
  constexpr int kRows = 37;
  constexpr int64_t kN = 1030;
  std::normal_distribution<float> normal;
  Floats x(kRows * 2 * kN), w(kN);
  for (float& v : x) v = normal(random);
  for (float& v : w) v = normal(random);
  for (CpuLevel level : SupportedCpuLevels()) {
    Floats norm_one(kRows * kN), swiglu_one(kRows * kN);
    ThreadPool one(1);
    for (int r = 0; r < kRows; ++r) {
      RmsNormRows(Context(level, one), x.data() + r * kN, w.data(), 1e-6f, 1, kN,
                  norm_one.data() + r * kN);
      SwiGluRows(Context(level, one), x.data() + r * 2 * kN, 2 * kN, 1, kN,
                 swiglu_one.data() + r * kN);
    }
    for (int threads = 1; threads <= 4; ++threads) {
      ThreadPool pool(threads);
      Floats norm(kRows * kN), swiglu(kRows * kN), sum = x;
      RmsNormRows(Context(level, pool), x.data(), w.data(), 1e-6f, kRows, kN, norm.data());
      SwiGluRows(Context(level, pool), x.data(), 2 * kN, kRows, kN, swiglu.data());
      AddRows(Context(level, pool), sum.data(), x.data(), static_cast<int64_t>(x.size()));
      EXPECT_TRUE(SameBits(norm, norm_one));
      EXPECT_TRUE(SameBits(swiglu, swiglu_one));
      for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(sum[i], x[i] + x[i]);
    }
  }
}

TEST(VectorOps, ScalarFunctionsEqualALaneOfTheVectorForms) {
  ThreadPool pool(1);
  std::mt19937 random(3);
  std::uniform_real_distribution<float> uniform(-110.0f, 95.0f);
  Floats b(5000), a(5000), zero(5000, 0.0f), minus_one(5000, -1.0f), g(5000), beta(5000);
  for (float& v : a) v = uniform(random);
  for (float& v : b) v = uniform(random);
  for (CpuLevel level : SupportedCpuLevels()) {
    DeltaGates(Context(level, pool), a.data(), 1, b.data(), 1, minus_one.data(), zero.data(), 5000,
               1, 1, g.data(), beta.data());
    Floats gate_up(10000), h(5000);
    for (size_t i = 0; i < 5000; ++i) {
      gate_up[2 * i] = a[i];
      gate_up[2 * i + 1] = 1.0f;
    }
    SwiGluRows(Context(level, pool), gate_up.data(), 2, 5000, 1, h.data());
    for (size_t i = 0; i < 5000; ++i) {
      ASSERT_EQ(g[i], ExpF(-SoftplusF(a[i])));
      ASSERT_EQ(beta[i], SigmoidF(b[i]));
      ASSERT_EQ(h[i], SiluF(a[i]));
    }
  }
  EXPECT_NEAR(LogF(10.0f), 2.302585f, 1e-6f);
}

TEST(VectorOps, ExpWeightsAndTheirBlockSumsAreEqualOnEveryLevel) {
  for (const int64_t n : {1, 15, 16, 255, 256, 257, 700, 1024}) {
    std::vector<float> x(n);
    for (int64_t i = 0; i < n; ++i) x[i] = static_cast<float>((i * 7919) % 1009) * 0.05f - 30.0f;
    x[n / 2] = std::numeric_limits<float>::quiet_NaN();
    x[n / 3] = -std::numeric_limits<float>::infinity();
    for (const CpuLevel level : SupportedCpuLevels()) {
      std::vector<float> w(n + 1, -7.0f), sums((n + 255) / 256 + 1, -7.0f);
      ExpWeights(level, x.data(), n, 20.45f, 0.7f, w.data(), sums.data());
      for (int64_t begin = 0; begin < n; begin += 256) {
        float lanes[16] = {};
        for (int64_t i = begin; i < std::min(begin + 256, n); ++i) {
          const float expect = std::isnan(x[i]) ? 0.0f : ExpF((x[i] - 20.45f) * 0.7f);
          EXPECT_EQ(w[i], expect) << i;
          lanes[i % 16] += expect;
        }
        for (int fold = 8; fold > 0; fold /= 2)
          for (int j = 0; j < fold; ++j) lanes[j] += lanes[j + fold];
        EXPECT_EQ(sums[begin / 256], lanes[0]) << n;
      }
      EXPECT_EQ(w[n], -7.0f);
      EXPECT_EQ(sums[(n + 255) / 256], -7.0f);
    }
  }
}

TEST(VectorOps, NormOfZerosIsZero) {
  ThreadPool pool(1);
  for (CpuLevel level : SupportedCpuLevels()) {
    Floats x(40, 0.0f), w(40, 2.0f), y(40, 1.0f);
    RmsNormRows(Context(level, pool), x.data(), w.data(), 1e-6f, 1, 40, y.data());
    EXPECT_TRUE(SameBits(y, x));
    L2NormHeads(Context(level, pool), x.data(), 40, 40, 1e-6f, 1.0f, 1, 1, 40);
    EXPECT_TRUE(SameBits(y, x));
  }
}

TEST(KernelContext, LevelNamesRoundTrip) {
  for (CpuLevel level : SupportedCpuLevels()) {
    EXPECT_EQ(ParseCpuLevel(CpuLevelName(level)), level);
  }
  EXPECT_EQ(ParseCpuLevel("sse2"), std::nullopt);
  EXPECT_EQ(SupportedCpuLevels().front(), CpuLevel::kScalar);
  EXPECT_EQ(SupportedCpuLevels().back(), DetectCpuLevel());
}

}  // namespace
}  // namespace cairn
