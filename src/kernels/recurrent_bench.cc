// Gated DeltaNet, causal convolution, norms and SwiGLU at the shapes of Qwen3.5-0.8B.
// Run: recurrent_bench [--benchmark_filter=...]; arguments are (level, threads, rows).
#include <benchmark/benchmark.h>

#include <vector>

#include "kernels/conv1d.h"
#include "kernels/gated_delta.h"
#include "kernels/rope.h"
#include "kernels/vector_ops.h"

namespace cairn {
namespace {

using Floats = std::vector<float>;

// Values in [-0.5, 0.5), repeatable.
Floats Values(size_t count, float scale) {
  Floats f(count);
  uint32_t x = 1;
  for (float& v : f) {
    x = x * 1664525u + 1013904223u;
    v = (static_cast<float>(x >> 8) * 0x1p-24f - 0.5f) * scale;
  }
  return f;
}

struct Setup {
  explicit Setup(const benchmark::State& state)
      : pool(static_cast<int>(state.range(1))),
        ctx{static_cast<CpuLevel>(state.range(0)), &pool},
        rows(static_cast<int>(state.range(2))) {}
  ThreadPool pool;
  KernelContext ctx;
  int rows;
};

// Reports the time (seconds) of one token in `layers` layers.
void Report(benchmark::State& state, const Setup& setup, int layers) {
  state.SetLabel(CpuLevelName(setup.ctx.level));
  state.counters["per_token"] =
      benchmark::Counter(static_cast<double>(state.iterations()) * setup.rows / layers,
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void BM_GatedDelta(benchmark::State& state) {
  Setup setup(state);
  constexpr int kHeads = 16, kDim = 128, kLd = 3 * kHeads * kDim, kLayers = 18;
  const GatedDeltaShape shape = {kHeads, kHeads, kDim, kDim, DeltaHeadMap::kTiled};
  const size_t rows = static_cast<size_t>(setup.rows);
  const Floats qkv = Values(rows * kLd, 0.3f);
  const Floats g(rows * kHeads, 0.95f), beta(rows * kHeads, 0.5f);
  Floats out(rows * kHeads * kDim);
  // 151 MB of states, taken in turn: like between the weights of a model, a single row does not
  // find its state in a cache.
  std::vector<Floats> states(8 * kLayers, Floats(shape.state_floats(), 0.01f));
  size_t next = 0;
  for (auto _ : state) {
    for (int layer = 0; layer < kLayers; ++layer) {
      Floats& memory = states[next++ % states.size()];
      const RecurrentSlice slice = {0, setup.rows, memory.data(), {}};
      GatedDelta(setup.ctx, shape, {&slice, 1}, qkv.data(), qkv.data() + kHeads * kDim, kLd,
                 qkv.data() + 2 * kHeads * kDim, kLd, g.data(), beta.data(), out.data(),
                 kHeads * kDim);
    }
  }
  Report(state, setup, 1);
  state.counters["state_GB/s"] = benchmark::Counter(
      static_cast<double>(state.iterations()) * kLayers * shape.state_floats() * 8e-9,
      benchmark::Counter::kIsRate);
}

void BM_Conv1d(benchmark::State& state) {
  Setup setup(state);
  const Conv1dShape shape = {6144, 4, ConvActivation::kSilu};
  const Floats u = Values(static_cast<size_t>(setup.rows) * 6144, 4.0f);
  const Floats w = Values(4 * 6144, 1.0f);
  Floats y(u.size()), memory(shape.state_floats());
  for (auto _ : state) {
    const RecurrentSlice slice = {0, setup.rows, memory.data(), {}};
    Conv1d(setup.ctx, shape, {&slice, 1}, u.data(), 6144, w, {}, y.data(), 6144);
  }
  Report(state, setup, 18);
}

void BM_RmsNorm(benchmark::State& state) {
  Setup setup(state);
  const Floats x = Values(static_cast<size_t>(setup.rows) * 1024, 4.0f);
  const Floats w = Values(1024, 1.0f);
  Floats y(x.size());
  for (auto _ : state) {
    RmsNormRows(setup.ctx, x.data(), w.data(), 1e-6f, setup.rows, 1024, y.data());
  }
  Report(state, setup, 48);
}

void BM_SwiGlu(benchmark::State& state) {
  Setup setup(state);
  const Floats gate_up = Values(static_cast<size_t>(setup.rows) * 2 * 3584, 8.0f);
  Floats h(gate_up.size() / 2);
  for (auto _ : state) {
    SwiGluRows(setup.ctx, gate_up.data(), 2 * 3584, setup.rows, 3584, h.data());
  }
  Report(state, setup, 24);
}

void BM_RopeAngles(benchmark::State& state) {
  Setup setup(state);
  const RopeTable table = {RopePairs::kHalfSplit, 64, RopeInverseFrequencies(1e7, 64), 1.0f};
  std::vector<int64_t> positions(static_cast<size_t>(setup.rows));
  for (size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<int64_t>(30000 + i);
  Floats cos(positions.size() * 32), sin(cos.size());
  for (auto _ : state) ComputeRopeAngles(setup.ctx, table, positions, cos.data(), sin.data());
  Report(state, setup, 1);
}

void Levels(benchmark::internal::Benchmark* b) {
  for (CpuLevel level : SupportedCpuLevels()) {
    if (level == CpuLevel::kScalar) continue;
    for (int threads : {1, 2})
      for (int rows : {1, 512}) b->Args({static_cast<int>(level), threads, rows});
  }
  b->UseRealTime();
}

BENCHMARK(BM_GatedDelta)->Apply(Levels)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_Conv1d)->Apply(Levels);
BENCHMARK(BM_RmsNorm)->Apply(Levels);
BENCHMARK(BM_SwiGlu)->Apply(Levels);
BENCHMARK(BM_RopeAngles)->Apply(Levels);

}  // namespace
}  // namespace cairn

BENCHMARK_MAIN();
