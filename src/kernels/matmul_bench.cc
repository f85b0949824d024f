// MatMul against the roof of the machine, measured in the same run.
//
//   matmul_bench --benchmark_filter='Q4_K/avx512/t2'
//
// Names: TYPE/LEVEL/tTHREADS/mROWS/nN/kK. Counters: GOPs (2 * m * n * k a second, in 1e9), GBps
// (packed weight bytes a second), and their share of the roof (int8 dot products or f32 FMA;
// reading memory).
#include <benchmark/benchmark.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/matmul.h"
#include "kernels/roof.h"

namespace cairn {
namespace {

constexpr WeightType kTypes[] = {
    WeightType::kQ4_0,          WeightType::kQ4_K, WeightType::kQ8_0, WeightType::kQ5_K,
    WeightType::kQ6_K,          WeightType::kF16,  WeightType::kBF16, WeightType::kF32,
    WeightType::kQ4_1,          WeightType::kQ5_0, WeightType::kQ5_1, WeightType::kAffine4G64BF16,
    WeightType::kAffine8G64BF16};

struct Shape {
  int rows;
  int64_t n;
  int64_t k;
};

// Random integers, f16 fields near 2^-7: any f16 in a block gets a fixed exponent.
std::vector<std::byte> RandomRows(WeightType type, int64_t n, int64_t k) {
  std::vector<std::byte> rows(static_cast<size_t>(n) * RowBytes(type, k));
  std::mt19937_64 rng(1);
  for (size_t i = 0; i + 8 <= rows.size(); i += 8) {
    const uint64_t v = rng();
    std::memcpy(&rows[i], &v, sizeof v);
  }
  auto soften = [&](size_t at) {
    rows[at + 1] = (rows[at + 1] & std::byte{0x83}) | std::byte{0x20};
  };
  const size_t block = BlockBytes(type);
  for (size_t at = 0; at < rows.size(); at += block) {
    if (type == WeightType::kF32) {
      rows[at + 3] = std::byte{0x3c};
    } else if (type == WeightType::kBF16) {
      rows[at + 1] = std::byte{0x3c};
    } else if (AffineFormatOf(type)) {  // BF16 scale and offset
      rows[at + 1] = rows[at + 3] = std::byte{0x3c};
    } else {
      soften(at + (type == WeightType::kQ6_K ? 208 : 0));
      if (IsQuantized(type)) soften(at + (type == WeightType::kQ6_K ? 208 : 2));
    }
  }
  return rows;
}

// One matrix at a time is kept: benchmarks run in registration order, by type and shape.
class Matrices {
 public:
  const PackedMatrix& Get(WeightType type, int64_t n, int64_t k) {
    if (!matrix_ || matrix_->type() != type || matrix_->n() != n || matrix_->k() != k) {
      matrix_ = nullptr;
      PanelArena arena;
      matrix_ = std::make_unique<PackedMatrix>(
          std::move(PackedMatrix::Pack(type, n, k, RandomRows(type, n, k), &arena)).value());
    }
    return *matrix_;
  }

 private:
  std::unique_ptr<PackedMatrix> matrix_;
};

void RunMatMul(benchmark::State& state, Matrices& matrices, const Roof& roof, WeightType type,
               CpuLevel level, int threads, Shape s) {
  const PackedMatrix& w = matrices.Get(type, s.n, s.k);
  ThreadPool pool(threads);
  const KernelContext ctx = {level, &pool};
  std::vector<float> x(static_cast<size_t>(s.rows * s.k));
  std::mt19937 rng(2);
  for (float& v : x) v = static_cast<float>(rng()) * 0x1p-31f - 1.0f;
  AlignedBuffer y(static_cast<size_t>(s.rows * s.n) * sizeof(float));
  AlignedBuffer workspace(ActivationBytes(s.rows, s.k));
  const bool quantized = IsQuantized(type);
  for (auto _ : state) {
    const Activations a = quantized ? PrepareActivations(ctx, x.data(), s.rows, s.k,
                                                         {workspace.data(), workspace.size()})
                                    : FloatActivations(x.data(), s.rows, s.k);
    MatMul(ctx, a, w, y.as<float>(), s.n);
    benchmark::DoNotOptimize(y.as<float>());
  }
  const double ops = 2.0 * s.rows * static_cast<double>(s.n) * static_cast<double>(s.k) * 1e-9;
  const double bytes = static_cast<double>(w.packed_bytes()) * 1e-9;
  using benchmark::Counter;
  const double peak = quantized ? roof.int8_gops : roof.fma_gflops;
  const double rounds = static_cast<double>(state.iterations());
  state.counters["GOPs"] = Counter(ops * rounds, Counter::kIsRate);
  state.counters["GBps"] = Counter(bytes * rounds, Counter::kIsRate);
  state.counters["of_ops_roof"] = Counter(ops * rounds / peak, Counter::kIsRate);
  state.counters["of_read_roof"] = Counter(bytes * rounds / roof.read_gbps, Counter::kIsRate);
}

void Register(Matrices& matrices, std::map<std::pair<CpuLevel, int>, Roof>& roofs) {
  for (WeightType type : kTypes) {
    const Shape shapes[] = {{512, 3584, 1024}, {512, 1024, 3584}, {1, 151936, 1024},
                            {4, 151936, 1024}, {8, 151936, 1024}, {32, 151936, 1024},
                            {1, 3584, 1024}};
    for (const Shape& s : shapes) {
      for (const auto& [key, roof] : roofs) {
        const auto [level, threads] = key;
        const std::string name = std::string(WeightTypeName(type)) + "/" + CpuLevelName(level) +
                                 "/t" + std::to_string(threads) + "/m" + std::to_string(s.rows) +
                                 "/n" + std::to_string(s.n) + "/k" + std::to_string(s.k);
        benchmark::RegisterBenchmark(name.c_str(), [&matrices, &roof = roof, type, level = level,
                                                    threads = threads, s](benchmark::State& state) {
          RunMatMul(state, matrices, roof, type, level, threads, s);
        })->UseRealTime();
      }
    }
  }
}

int Main(int argc, char** argv) {
  std::map<std::pair<CpuLevel, int>, Roof> roofs;
  for (CpuLevel level : SupportedCpuLevels()) {
    if (level == CpuLevel::kScalar) continue;
    for (int threads : {1, 2}) {
      ThreadPool pool(threads);
      const Roof roof = MeasureRoof({level, &pool});
      std::printf("roof %s threads %d: fma %.0f GFLOP/s, int8 %.0f GOP/s, read %.1f GB/s\n",
                  CpuLevelName(level), threads, roof.fma_gflops, roof.int8_gops, roof.read_gbps);
      roofs[{level, threads}] = roof;
    }
  }
  Matrices matrices;
  Register(matrices, roofs);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) { return cairn::Main(argc, argv); }
