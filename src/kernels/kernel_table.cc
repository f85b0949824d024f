// One table of all kernels: what each reaches, and which share of the machine's roof that is, the
// roof measured first, in the same run.
//
//   kernel_table [--levels avx512,avx2] [--threads N] [--kernels matmul,attention,rows] > table.csv
//
// Columns: level, threads, kernel, case, value, unit, roof, share. The best of a few rounds, at the
// dimensions of Qwen3.5-0.8B. GOP/s and GFLOP/s count a multiply-add as 2; attention counts 4 *
// head_dim a (row, head, visible key) whatever the KV type, so q8_0 stands beside f16. GB/s counts
// weights, K and V or state once; in kernels that pass over rows, what is read and written, which
// caches may hold: there a share above 1 is no mistake. The roof of an operation count is int8
// products for quantised weights and float32 fma otherwise.
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "kernels/attention.h"
#include "kernels/conv1d.h"
#include "kernels/gated_delta.h"
#include "kernels/matmul.h"
#include "kernels/roof.h"
#include "kernels/rope.h"
#include "kernels/vector_ops.h"

namespace cairn {
namespace {

using Floats = std::vector<float>;

struct Options {
  std::vector<CpuLevel> levels = SupportedCpuLevels();
  int threads = AvailableCpuCount();
  std::string kernels = "matmul,attention,rows";
};

[[noreturn]] void Usage(std::string_view arg) {
  std::fprintf(stderr, "kernel_table: unknown argument %s\n", std::string(arg).c_str());
  std::exit(2);
}

Options ParseOptions(int argc, char** argv) {
  Options options;
  std::erase(options.levels, CpuLevel::kScalar);  // minutes
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    if (i + 1 >= argc) Usage(arg);
    std::string_view value = argv[++i];
    if (arg == "--threads") {
      options.threads = std::max(1, std::atoi(argv[i]));
    } else if (arg == "--kernels") {
      options.kernels = value;
    } else if (arg == "--levels") {
      options.levels.clear();
      while (!value.empty()) {
        const std::string_view name = value.substr(0, value.find(','));
        const auto level = ParseCpuLevel(name);
        if (!level) Usage(name);
        options.levels.push_back(*level);
        value.remove_prefix(std::min(value.size(), name.size() + 1));
      }
    } else {
      Usage(arg);
    }
  }
  return options;
}

Floats Values(size_t count, float scale) {
  Floats f(count);
  uint32_t x = 1;
  for (float& v : f) {
    x = x * 1664525u + 1013904223u;
    v = (static_cast<float>(x >> 8) * 0x1p-24f - 0.5f) * scale;
  }
  return f;
}

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The best time of fn() in a third of a second, at least three rounds after one to warm up.
double BestSeconds(const std::function<void()>& fn) {
  fn();
  double best = 1e9;
  const double end = Seconds() + 0.3;
  for (int round = 0; round < 3 || Seconds() < end; ++round) {
    const double start = Seconds();
    fn();
    best = std::min(best, Seconds() - start);
  }
  return best;
}

// What all rows of the table share.
struct Bench {
  const KernelContext& ctx;
  Roof roof;

  void Row(const std::string& kernel, const std::string& what, double value, const char* unit,
           double limit) const {
    std::printf("%s,%d,%s,%s,%.1f,%s,%.1f,%.3f\n", CpuLevelName(ctx.level),
                ctx.pool->thread_count(), kernel.c_str(), what.c_str(), value, unit, limit,
                value / limit);
    std::fflush(stdout);
  }
  void Bytes(const std::string& kernel, const std::string& what, double gb, double seconds) const {
    Row(kernel, what, gb / seconds, "GB/s", roof.read_gbps);
  }
};

// --- matmul ---

constexpr WeightType kTypes[] = {WeightType::kQ4_0, WeightType::kQ4_1, WeightType::kQ5_0,
                                 WeightType::kQ5_1, WeightType::kQ4_K, WeightType::kQ5_K,
                                 WeightType::kQ6_K, WeightType::kQ8_0, WeightType::kF16,
                                 WeightType::kBF16, WeightType::kF32};
constexpr int64_t kK = 1024;
constexpr size_t kWeightBytes = size_t{96} << 20;  // more than the caches hold

// Bits that are small finite numbers in every field of every type: f16 and bfloat16 near 2^-7.
Result<PackedMatrix> RandomMatrix(WeightType type) {
  const int64_t n = static_cast<int64_t>(kWeightBytes / RowBytes(type, kK)) / 32 * 32;
  std::vector<std::byte> rows(static_cast<size_t>(n) * RowBytes(type, kK));
  uint32_t x = 1;
  for (std::byte& b : rows) {
    x = x * 1664525u + 1013904223u;
    b = static_cast<std::byte>(0x20 + (x >> 30));
  }
  PanelArena arena;
  return PackedMatrix::Pack(type, n, kK, rows, &arena);
}

void BenchMatMul(const Bench& bench) {
  constexpr int kRowsMax = 512;
  const Floats x = Values(kRowsMax * kK, 2);
  AlignedBuffer workspace(ActivationBytes(kRowsMax, kK));
  for (const WeightType type : kTypes) {
    const auto w = RandomMatrix(type);
    if (!w.ok()) {
      std::fprintf(stderr, "kernel_table: %s\n", w.status().ToString().c_str());
      std::exit(1);
    }
    const bool quantised = IsQuantized(type);
    const std::string kernel = std::string("matmul ") + WeightTypeName(type);
    Floats y(static_cast<size_t>(kRowsMax * w->n()));
    for (const int rows : {1, 8, 32, kRowsMax}) {
      const double seconds = BestSeconds([&] {
        const Activations a = quantised ? PrepareActivations(bench.ctx, x.data(), rows, kK,
                                                             {workspace.data(), workspace.size()})
                                        : FloatActivations(x.data(), rows, kK);
        MatMul(bench.ctx, a, *w, y.data(), w->n());
      });
      const std::string what = "M=" + std::to_string(rows);
      if (rows == 1) {
        bench.Bytes(kernel, what, static_cast<double>(w->packed_bytes()) * 1e-9, seconds);
      } else {
        const double ops = 2e-9 * rows * static_cast<double>(w->n()) * static_cast<double>(kK);
        bench.Row(kernel, what, ops / seconds, quantised ? "GOP/s" : "GFLOP/s",
                  quantised ? bench.roof.int8_gops : bench.roof.fma_gflops);
      }
    }
  }
}

// --- attention ---

// One sequence of `positions` random keys and values in each of some layers, which calls take in
// turn so that no cache holds them.
class KvStore {
 public:
  static constexpr int kLayers = 4;

  KvStore(const KernelContext& ctx, const AttentionShape& shape, int64_t positions)
      : bytes_(static_cast<std::byte*>(std::aligned_alloc(
                   kHugePage, AlignUp(positions / kBlockPositions * shape.layer_bytes() * kLayers,
                                      kHugePage))),
               std::free) {
    const size_t block_bytes = shape.layer_bytes() * kLayers;
    const size_t block_count = static_cast<size_t>(positions / kBlockPositions);
    // As the engine's blocks lie.
    madvise(bytes_.get(), AlignUp(block_count * block_bytes, kHugePage), MADV_HUGEPAGE);
    std::memset(bytes_.get(), 0, block_count * block_bytes);
    for (size_t i = 0; i < block_count; ++i) blocks_.push_back(bytes_.get() + i * block_bytes);
    const int64_t width = int64_t{shape.kv_heads} * shape.head_dim;
    const Floats kv = Values(static_cast<size_t>(kBlockPositions * width), 1);
    for (int64_t position = 0; position < positions; position += kBlockPositions) {
      for (int layer = 0; layer < kLayers; ++layer) {
        const AttentionSlice slice{0, kBlockPositions, position, blocks_,
                                   shape.layer_bytes() * static_cast<size_t>(layer)};
        StoreKv(ctx, shape, {&slice, 1}, kv.data(), width, kv.data(), width);
      }
    }
  }
  AttentionSlice Slice(const AttentionShape& shape, int64_t position, int rows, int call) const {
    const auto count =
        static_cast<size_t>((position + rows + kBlockPositions - 1) / kBlockPositions);
    return {0, rows, position, std::span(blocks_).first(count),
            shape.layer_bytes() * static_cast<size_t>(call % kLayers)};
  }

 private:
  static constexpr size_t kHugePage = size_t{2} << 20;

  std::unique_ptr<std::byte, void (*)(void*)> bytes_;
  std::vector<std::byte*> blocks_;
};

void BenchAttention(const Bench& bench) {
  constexpr int kRows = 512;
  constexpr int64_t kPositions = 24576 + kRows;
  for (const KvType type : {KvType::kF16, KvType::kF32, KvType::kQ8_0}) {
    const AttentionShape shape{8, 2, 256, 0.0625f, type};
    const KvStore store(bench.ctx, shape, kPositions);
    const int64_t width = int64_t{shape.heads} * shape.head_dim;
    const Floats q = Values(static_cast<size_t>(kRows * width), 2);
    Floats out(q.size());
    AlignedBuffer scratch(
        AttentionScratchBytes(shape, kRows, kPositions, bench.ctx.pool->thread_count()));
    int call = 0;
    auto attend = [&](int64_t depth, int rows) {
      return BestSeconds([&] {
        const AttentionSlice slice = store.Slice(shape, depth, rows, call++);
        Attend(bench.ctx, shape, {&slice, 1}, q.data(), width, out.data(), width,
               {scratch.data(), scratch.size()});
      });
    };
    const std::string kernel = std::string("attention ") + KvTypeName(type);
    for (const int64_t depth : {0, 4096, 24576}) {
      const double visible = kRows * (static_cast<double>(depth) + (kRows + 1) / 2.0);
      const double gflop = visible * static_cast<double>(width) * 4e-9;
      bench.Row(kernel, "prefill 512 at " + std::to_string(depth), gflop / attend(depth, kRows),
                "GFLOP/s", bench.roof.fma_gflops);
    }
    for (const int64_t depth : {4096, 24576}) {
      const double gb = static_cast<double>(depth + 1) *
                        static_cast<double>(shape.layer_bytes() / kBlockPositions) * 1e-9;
      bench.Bytes(kernel, "decode at " + std::to_string(depth), gb, attend(depth, 1));
    }
  }
}

// --- recurrent layers and passes over rows ---

void BenchGatedDelta(const Bench& bench, int rows) {
  constexpr int kHeads = 16, kDim = 128, kLd = 3 * kHeads * kDim;
  const GatedDeltaShape shape = {kHeads, kHeads, kDim, kDim, DeltaHeadMap::kTiled};
  const auto count = static_cast<size_t>(rows);
  const Floats qkv = Values(count * kLd, 0.3f);
  const Floats g(count * kHeads, 0.95f), beta(count * kHeads, 0.5f);
  Floats out(count * kHeads * kDim);
  // Taken in turn, as a single row finds them between the weights: in no cache.
  std::vector<Floats> states(144, Floats(shape.state_floats(), 0.01f));
  size_t next = 0;
  const double seconds = BestSeconds([&] {
    for (int i = 0; i < 18; ++i) {
      const RecurrentSlice slice = {0, rows, states[next++ % states.size()].data(), {}};
      GatedDelta(bench.ctx, shape, {&slice, 1}, qkv.data(), qkv.data() + kHeads * kDim, kLd,
                 qkv.data() + 2 * kHeads * kDim, kLd, g.data(), beta.data(), out.data(),
                 kHeads * kDim);
    }
  });
  const std::string what = std::to_string(rows) + " rows";
  if (rows == 1) {  // the state is read and written
    bench.Bytes("gated delta", what, 18 * static_cast<double>(shape.state_floats()) * 8e-9,
                seconds);
  } else {  // decay, read, write, query: four vector operations an element
    bench.Row("gated delta", what,
              18 * 8e-9 * rows * static_cast<double>(shape.state_floats()) / seconds, "GFLOP/s",
              bench.roof.fma_gflops);
  }
}

void BenchConv(const Bench& bench, int rows) {
  constexpr int kChannels = 6144;
  const Conv1dShape shape = {kChannels, 4, ConvActivation::kSilu};
  const Floats u = Values(static_cast<size_t>(rows) * kChannels, 4), w = Values(4 * kChannels, 1);
  Floats y(u.size()), memory(shape.state_floats());
  const double seconds = BestSeconds([&] {
    const RecurrentSlice slice = {0, rows, memory.data(), {}};
    Conv1d(bench.ctx, shape, {&slice, 1}, u.data(), kChannels, w, {}, y.data(), kChannels);
  });
  bench.Bytes("conv1d + SiLU", std::to_string(rows) + " rows", 8e-9 * static_cast<double>(u.size()),
              seconds);
}

void BenchRowPasses(const Bench& bench, int rows) {
  constexpr int64_t kWide = 3584, kHidden = 1024;
  const KernelContext& ctx = bench.ctx;
  const std::string what = std::to_string(rows) + " rows";
  const auto count = static_cast<size_t>(rows);
  const Floats x = Values(count * kHidden, 4), w = Values(kHidden, 1);
  Floats y(count * 2 * kWide);
  bench.Bytes("rms norm", what, 8e-9 * static_cast<double>(x.size()), BestSeconds([&] {
                RmsNormRows(ctx, x.data(), w.data(), 1e-6f, rows, kHidden, y.data());
              }));
  AlignedBuffer workspace(ActivationBytes(rows, kHidden));
  bench.Bytes("quantise to int8", what, 5e-9 * static_cast<double>(x.size()), BestSeconds([&] {
                PrepareActivations(ctx, x.data(), rows, kHidden,
                                   {workspace.data(), workspace.size()});
              }));
  const Floats gate_up = Values(count * 2 * kWide, 8);
  bench.Bytes("SwiGLU", what, 6e-9 * static_cast<double>(gate_up.size()), BestSeconds([&] {
                SwiGluRows(ctx, gate_up.data(), 2 * kWide, rows, kWide, y.data());
              }));
  const RopeTable table = {RopePairs::kHalfSplit, 64, RopeInverseFrequencies(1e7, 64), 1.0f};
  std::vector<int64_t> positions(count);
  for (size_t i = 0; i < count; ++i) positions[i] = static_cast<int64_t>(30000 + i);
  Floats cosines(count * 32), sines(count * 32), q = Values(count * 2048, 2);
  bench.Bytes("rope (8 heads of 256, 64 rotated)", what, 8e-9 * rows * 8 * 64, BestSeconds([&] {
                const RopeAngles angles =
                    ComputeRopeAngles(ctx, table, positions, cosines.data(), sines.data());
                ApplyRope(ctx, table, angles, q.data(), 2048, 256, rows, 8);
              }));
}

void Run(const Options& options) {
  std::printf("level,threads,kernel,case,value,unit,roof,share\n");
  const auto wanted = [&](const char* name) {
    return options.kernels.find(name) != std::string::npos;
  };
  for (const CpuLevel level : options.levels) {
    ThreadPool pool(options.threads);
    const KernelContext ctx{level, &pool};
    const Bench bench{ctx, MeasureRoof(ctx)};
    if (wanted("matmul")) BenchMatMul(bench);
    if (wanted("attention")) BenchAttention(bench);
    if (!wanted("rows")) continue;
    for (const int rows : {1, 512}) {
      BenchGatedDelta(bench, rows);
      BenchConv(bench, rows);
      BenchRowPasses(bench, rows);
    }
  }
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) { cairn::Run(cairn::ParseOptions(argc, argv)); }
