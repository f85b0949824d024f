// The selective scan of Mamba2 and what surrounds it, at the shapes of Granite-4.0-H-350M (28
// layers, 48 heads x 32, 128 states) and Falcon-H1-0.5B (36 layers, 24 heads x 64, 128 states).
// Run: ssd_scan_bench [--benchmark_filter=...]; arguments are (level, threads, rows). per_token is
// the time of one token in all layers.
#include <benchmark/benchmark.h>

#include <vector>

#include "kernels/conv1d.h"
#include "kernels/ssd_scan.h"

namespace cairn {
namespace {

using Floats = std::vector<float>;

struct ModelShape {
  const char* name;
  int layers;
  SsdShape ssd;
};
constexpr ModelShape kGranite = {"granite-4.0-h-350m", 28, {48, 32, 1, 128}};
constexpr ModelShape kFalcon = {"falcon-h1-0.5b", 36, {24, 64, 1, 128}};

// Values in [-scale / 2, scale / 2), repeatable.
Floats Values(size_t count, float scale) {
  Floats f(count);
  uint32_t x = 1;
  for (float& v : f) {
    x = x * 1664525u + 1013904223u;
    v = (static_cast<float>(x >> 8) * 0x1p-24f - 0.5f) * scale;
  }
  return f;
}

void Report(benchmark::State& state, const ModelShape& model, double layer_rows) {
  state.SetLabel(std::string(model.name) + " " +
                 CpuLevelName(static_cast<CpuLevel>(state.range(0))));
  state.counters["per_token"] =
      benchmark::Counter(static_cast<double>(state.iterations()) * layer_rows / model.layers,
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void BM_SsdScan(benchmark::State& state, const ModelShape& model) {
  const SsdShape& s = model.ssd;
  ThreadPool pool(static_cast<int>(state.range(1)));
  const KernelContext ctx = {static_cast<CpuLevel>(state.range(0)), &pool};
  const int rows = static_cast<int>(state.range(2));
  const int64_t ld = s.inner() + 2 * s.group_states();
  const size_t n = static_cast<size_t>(rows);
  const Floats ubc = Values(n * ld, 1.0f), raw = Values(n * s.heads, 2.0f);
  const Floats bias(s.heads, -2.0f), a_neg(s.heads, -0.5f), d(s.heads, 1.0f);
  Floats dt(n * s.heads), decay(n * s.heads), out(n * s.inner());
  // 170 MB of states and more, taken in turn: a single row does not find its state in a cache.
  std::vector<Floats> states(8 * static_cast<size_t>(model.layers),
                             Floats(s.state_floats(), 0.01f));
  size_t next = 0;
  for (auto _ : state) {
    for (int layer = 0; layer < model.layers; ++layer) {
      const RecurrentSlice slice = {0, rows, states[next++ % states.size()].data(), {}};
      SsdGates(ctx, raw.data(), s.heads, bias.data(), a_neg.data(), rows, s.heads, dt.data(),
               decay.data());
      SsdScan(ctx, s, {&slice, 1}, ubc.data(), ubc.data() + s.inner(),
              ubc.data() + s.inner() + s.group_states(), ld, dt.data(), decay.data(), d.data(),
              out.data(), s.inner());
    }
  }
  Report(state, model, static_cast<double>(rows) * model.layers);
  state.counters["state_GB/s"] = benchmark::Counter(
      static_cast<double>(state.iterations()) * model.layers * s.state_floats() * 8e-9,
      benchmark::Counter::kIsRate);
}

void BM_Conv1d(benchmark::State& state, const ModelShape& model) {
  ThreadPool pool(static_cast<int>(state.range(1)));
  const KernelContext ctx = {static_cast<CpuLevel>(state.range(0)), &pool};
  const int rows = static_cast<int>(state.range(2));
  const int channels = model.ssd.inner() + 2 * model.ssd.group_states();
  const Conv1dShape shape = {channels, 4, ConvActivation::kSilu};
  const Floats u = Values(static_cast<size_t>(rows) * channels, 4.0f);
  const Floats w = Values(4 * static_cast<size_t>(channels), 1.0f), bias = Values(channels, 1.0f);
  Floats y(u.size()), memory(shape.state_floats());
  for (auto _ : state) {
    const RecurrentSlice slice = {0, rows, memory.data(), {}};
    Conv1d(ctx, shape, {&slice, 1}, u.data(), channels, w, bias, y.data(), channels);
  }
  Report(state, model, rows);
}

void Levels(benchmark::internal::Benchmark* b) {
  for (CpuLevel level : SupportedCpuLevels()) {
    if (level == CpuLevel::kScalar) continue;
    for (int threads : {1, 2})
      for (int rows : {1, 512}) b->Args({static_cast<int>(level), threads, rows});
  }
  b->UseRealTime();
}

BENCHMARK_CAPTURE(BM_SsdScan, granite, kGranite)->Apply(Levels)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_SsdScan, falcon, kFalcon)->Apply(Levels)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_Conv1d, granite, kGranite)->Apply(Levels);

}  // namespace
}  // namespace cairn

BENCHMARK_MAIN();
