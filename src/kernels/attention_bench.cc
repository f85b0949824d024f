// Attention at the shape of Qwen3.5-0.8B (8 heads, 2 KV heads, head_dim 256), as shares of the roof
// measured in the same run. attention_bench [--layers N] [--level NAME] [--threads N] [--kv
// f32|f16|q8_0]
//
// prefill: 512 rows at a depth; GFLOP/s counts 4 * head_dim operations per (row, head, visible
// key). decode: 1 row; GB/s counts K and V read once. Each call reads another layer, so that no
// cache holds it. The best of several calls is shown with the median, since the machine is shared.
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "kernels/attention.h"
#include "kernels/roof.h"

namespace cairn {
namespace {

struct Options {
  int layers = 4;
  std::vector<CpuLevel> levels = SupportedCpuLevels();
  std::vector<int> threads = {1, AvailableCpuCount()};
  KvType kv_type = KvType::kF16;
};

KvType KvTypeOption(std::string_view name) {
  for (KvType type : {KvType::kF32, KvType::kF16}) {
    if (name == KvTypeName(type)) return type;
  }
  return KvType::kQ8_0;
}

Options ParseOptions(int argc, char** argv) {
  Options options;
  std::erase(options.levels, CpuLevel::kScalar);  // minutes
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    if (i + 1 < argc && arg == "--kv") {
      options.kv_type = KvTypeOption(argv[++i]);
    } else if (i + 1 < argc && arg == "--layers") {
      options.layers = std::atoi(argv[++i]);
    } else if (i + 1 < argc && arg == "--threads") {
      options.threads = {std::atoi(argv[++i])};
    } else if (i + 1 < argc && arg == "--level" && ParseCpuLevel(argv[i + 1])) {
      options.levels = {*ParseCpuLevel(argv[++i])};
    } else {
      std::fprintf(stderr, "attention_bench: unknown argument %s\n", argv[i]);
      std::exit(2);
    }
  }
  return options;
}

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Blocks of one sequence with random keys and values in every layer.
class Store {
 public:
  Store(const AttentionShape& shape, int64_t positions, int layers)
      : bytes_(static_cast<std::byte*>(std::aligned_alloc(
                   kHugePage,
                   AlignUp(positions / kBlockPositions * shape.layer_bytes() * layers, kHugePage))),
               std::free) {
    const size_t block_bytes = shape.layer_bytes() * layers;
    const size_t block_count = positions / kBlockPositions;
    // As the engine's blocks lie, at the sizes that matter.
    madvise(bytes_.get(), AlignUp(block_count * block_bytes, kHugePage), MADV_HUGEPAGE);
    std::memset(bytes_.get(), 0, block_count * block_bytes);
    for (size_t i = 0; i < block_count; ++i) blocks_.push_back(bytes_.get() + i * block_bytes);
    ThreadPool pool(1);
    const KernelContext ctx{DetectCpuLevel(), &pool};
    const int64_t width = static_cast<int64_t>(shape.kv_heads) * shape.head_dim;
    std::vector<float> kv(kBlockPositions * width);
    uint32_t x = 1;
    for (float& value : kv) {
      x = x * 1664525 + 1013904223;
      value = static_cast<float>(static_cast<int32_t>(x)) * 0x1p-32f;
    }
    for (int64_t position = 0; position < positions; position += kBlockPositions) {
      for (int layer = 0; layer < layers; ++layer) {
        const AttentionSlice slice{0, kBlockPositions, position, blocks_,
                                   shape.layer_bytes() * layer};
        StoreKv(ctx, shape, {&slice, 1}, kv.data(), width, kv.data(), width);
      }
    }
  }
  std::span<std::byte* const> blocks() const { return blocks_; }

 private:
  static constexpr size_t kHugePage = size_t{2} << 20;

  std::unique_ptr<std::byte, void (*)(void*)> bytes_;
  std::vector<std::byte*> blocks_;
};

struct Timing {
  double best, median;
};

Timing Time(const KernelContext& ctx, const AttentionShape& shape, const Store& store, int layers,
            int64_t position, int rows, int repeats) {
  const int64_t width = static_cast<int64_t>(shape.heads) * shape.head_dim;
  std::vector<float> q(rows * width), out(rows * width);
  for (size_t i = 0; i < q.size(); ++i) q[i] = static_cast<float>(i * 7919 % 1000) * 0.002f - 1;
  const int64_t end = position + rows;
  AlignedBuffer scratch(AttentionScratchBytes(shape, rows, end, ctx.pool->thread_count()));
  std::vector<double> seconds;
  for (int i = 0; i <= repeats; ++i) {
    const AttentionSlice slice{0, rows, position,
                               store.blocks().first((end + kBlockPositions - 1) / kBlockPositions),
                               shape.layer_bytes() * (i % layers)};
    const double start = Seconds();
    Attend(ctx, shape, {&slice, 1}, q.data(), width, out.data(), width,
           {scratch.data(), scratch.size()});
    if (i > 0) seconds.push_back(Seconds() - start);
  }
  std::sort(seconds.begin(), seconds.end());
  return {seconds.front(), seconds[seconds.size() / 2]};
}

void BenchPrefill(const KernelContext& ctx, const AttentionShape& shape, const Store& store,
                  int layers, const Roof& roof) {
  for (int64_t depth : {0, 8192, 24576 - 512}) {
    constexpr int kRows = 512;
    const double visible = kRows * (static_cast<double>(depth) + (kRows + 1) / 2.0);
    const double gflop = visible * shape.heads * shape.head_dim * 4e-9;
    const Timing t = Time(ctx, shape, store, layers, depth, kRows, depth == 0 ? 20 : 5);
    std::printf("  prefill 512 at %5ld: best %8.2f ms, median %8.2f ms, %6.1f GFLOP/s = %4.1f %%\n",
                static_cast<long>(depth), t.best * 1e3, t.median * 1e3, gflop / t.best,
                100 * gflop / t.best / roof.fma_gflops);
  }
}

void BenchDecode(const KernelContext& ctx, const AttentionShape& shape, const Store& store,
                 int layers, const Roof& roof) {
  for (int64_t depth : {1024, 8192, 24576 - 64}) {
    const double gb = static_cast<double>(depth + 1) * shape.layer_bytes() / kBlockPositions * 1e-9;
    const Timing t = Time(ctx, shape, store, layers, depth, 1, 40);
    std::printf("  decode at    %7ld: best %8.3f ms, median %8.3f ms, %6.1f GB/s = %4.1f %%\n",
                static_cast<long>(depth), t.best * 1e3, t.median * 1e3, gb / t.best,
                100 * gb / t.best / roof.read_gbps);
  }
}

// A prompt's piece beside streams.
void BenchPieces(const KernelContext& ctx, const AttentionShape& shape, const Store& store,
                 int layers, const Roof& roof) {
  constexpr int64_t kDepth = 24576 - 64;
  for (int rows : {1, 2, 3, 4, 6, 8, 16}) {
    const double gflop = rows * static_cast<double>(kDepth) * shape.heads * shape.head_dim * 4e-9;
    const Timing t = Time(ctx, shape, store, layers, kDepth, rows, 40);
    std::printf("  piece of %2d at %ld: best %8.3f ms, %6.3f ms a row, %6.1f GFLOP/s = %4.1f %%\n",
                rows, static_cast<long>(kDepth), t.best * 1e3, t.best * 1e3 / rows, gflop / t.best,
                100 * gflop / t.best / roof.fma_gflops);
  }
}

void BenchStore(const KernelContext& ctx, const AttentionShape& shape, const Store& store) {
  constexpr int kRows = 512;
  const int64_t width = static_cast<int64_t>(shape.kv_heads) * shape.head_dim;
  const std::vector<float> kv(kRows * width, 0.25f);
  double best = 1e9;
  for (int i = 0; i < 20; ++i) {
    const AttentionSlice slice{0, kRows, i * kRows, store.blocks(), 0};
    const double start = Seconds();
    StoreKv(ctx, shape, {&slice, 1}, kv.data(), width, kv.data(), width);
    best = std::min(best, Seconds() - start);
  }
  std::printf("  store 512:             best %8.3f ms\n", best * 1e3);
}

void Bench(const Options& options) {
  const AttentionShape shape{8, 2, 256, 0.0625f, options.kv_type};
  const Store store(shape, 24576, options.layers);
  for (CpuLevel level : options.levels) {
    for (int threads : options.threads) {
      ThreadPool pool(threads);
      const KernelContext ctx{level, &pool};
      const Roof roof = MeasureRoof(ctx);
      std::printf("%s, %d threads, KV %s; roof %.0f GFLOP/s, %.1f GB/s\n", CpuLevelName(level),
                  threads, KvTypeName(shape.kv_type), roof.fma_gflops, roof.read_gbps);
      BenchPrefill(ctx, shape, store, options.layers, roof);
      BenchDecode(ctx, shape, store, options.layers, roof);
      BenchPieces(ctx, shape, store, options.layers, roof);
      BenchStore(ctx, shape, store);
    }
  }
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) { cairn::Bench(cairn::ParseOptions(argc, argv)); }
