// Attention: what runs where. The arithmetic is attention_impl.h, built once per CPU level; nothing
// here changes a bit of the result.
#include "kernels/attention.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "base/bytes.h"
#include "base/check.h"
#include "kernels/attention_tile.h"
#include "kernels/kernel_faults.h"
#include "kernels/quant.h"

namespace cairn {
namespace {

// Parts kept at once, per thread. Bounds the scratch of long contexts: tiles cut into segments are
// computed and merged in waves.
constexpr int kPartsPerThread = 64;
// A tile is at most this share of a thread's work, so that threads finish together.
constexpr int kTasksPerThread = 4;
// Segments of a cut tile that one task computes: as many as leave each thread this many tasks,
// since the first of a run is not prefetched.
constexpr int kRunSegmentsMax = 8;
constexpr int kRunsPerThread = 6;
// Below this many elements StoreKv is faster than waking the pool.
constexpr int64_t kStoreSerialElements = 16384;

struct TileTask {
  int slice;
  int kv_head;
  int row_begin;
  int row_count;
  int64_t cost;  // rows x positions
  bool cut;      // its segments are tasks of their own
};

const AttentionKernels& Kernels(CpuLevel level) {
#if defined(__x86_64__)
  if (level == CpuLevel::kAvx512) return kAttentionAvx512;
  if (level == CpuLevel::kAvx2) return kAttentionAvx2;
#endif
  (void)level;
  return kAttentionScalar;
}

void CheckShape(const AttentionShape& shape) {
  CHECK(shape.head_dim > 0 && shape.head_dim <= kHeadDimMax && shape.head_dim % 8 == 0);
  CHECK(shape.kv_heads > 0 && shape.heads > 0 && shape.heads % shape.kv_heads == 0);
}

int SegmentCount(int64_t positions) {
  return static_cast<int>((positions + kSegmentPositions - 1) / kSegmentPositions);
}

// Where things lie in the scratch, in order, each aligned to 64 bytes.
struct ScratchLayout {
  ScratchLayout(const AttentionShape& shape, int rows, int threads) {
    const int group = shape.heads / shape.kv_heads;
    const size_t out_floats = AlignUp(shape.head_dim, 16);
    part_floats = kAttentionPartRowsMax * out_floats + 2 * AlignUp(kAttentionPartRowsMax, 16);
    tile_floats = CarveTileScratch(nullptr, shape.head_dim).floats;
    // A slice has at least one row, and tiles, but its last, at least kAttentionPartRowsMax.
    task_count_max = static_cast<size_t>(shape.kv_heads) *
                     (static_cast<size_t>(rows) * group / kAttentionPartRowsMax + rows);
    part_count = static_cast<size_t>(kPartsPerThread) * threads;
    state_count = static_cast<size_t>(kTasksPerThread) * threads;
    tile_offset = 0;
    part_offset = tile_offset + threads * tile_floats * sizeof(float);
    state_offset = part_offset + part_count * part_floats * sizeof(float);
    task_offset = state_offset + state_count * part_floats * sizeof(float);
    bytes = AlignUp(task_offset + task_count_max * sizeof(TileTask), 64);
  }
  size_t part_floats, tile_floats;
  size_t task_count_max, part_count, state_count;
  size_t tile_offset, part_offset, state_offset, task_offset, bytes;
};

// One call of Attend.
class AttendCall {
 public:
  AttendCall(const KernelContext& ctx, const AttentionShape& shape,
             std::span<const AttentionSlice> slices, const float* q, int64_t ldq, float* out,
             int64_t ldout, const ScratchLayout& layout, std::byte* scratch)
      : ctx_(ctx),
        kernels_(Kernels(ctx.level)),
        shape_(shape),
        slices_(slices),
        q_(q),
        ldq_(ldq),
        out_(out),
        ldout_(ldout),
        layout_(layout),
        scratch_(scratch),
        group_(shape.heads / shape.kv_heads),
        tasks_(reinterpret_cast<TileTask*>(scratch + layout.task_offset)) {}

  void Run() {
    PlanTasks();
    int segments_max = 0;
    for (int i = 0; i < cut_count_; ++i)
      segments_max = std::max(segments_max, TileSegments(tasks_[i]));
    RunTilesAndParts(task_count_ - cut_count_, 0);
    for (int begin = 0; begin < segments_max; begin += wave_segments_) {
      if (begin > 0) RunTilesAndParts(0, begin);
      MergeParts(begin);
    }
  }

 private:
  int64_t Visible(const AttentionSlice& slice) const {
    return Windowed(slice.position + slice.row_count, slice.row_count);
  }
  // Positions that a tile of `rows` positions reads of the `visible` ones before its end.
  int64_t Windowed(int64_t visible, int64_t rows) const {
    return shape_.window > 0 ? std::min(visible, shape_.window + rows) : visible;
  }

  // Cuts slices into tiles and decides which tiles are cut again, into segments.
  void PlanTasks() {
    int64_t total = 0;
    for (const AttentionSlice& s : slices_) total += s.row_count * shape_.heads * Visible(s);
    const int64_t share =
        std::max<int64_t>(1, total / (kTasksPerThread * ctx_.pool->thread_count()));
    for (int i = 0; i < static_cast<int>(slices_.size()); ++i) PlanSlice(i, share);
    CHECK(static_cast<size_t>(task_count_) <= layout_.task_count_max);
    // Cut tiles first, then the most expensive first: the last tasks to start are short.
    std::sort(tasks_, tasks_ + task_count_, [](const TileTask& a, const TileTask& b) {
      if (a.cut != b.cut) return a.cut;
      if (a.cost != b.cost) return a.cost > b.cost;
      if (a.slice != b.slice) return a.slice < b.slice;
      if (a.kv_head != b.kv_head) return a.kv_head < b.kv_head;
      return a.row_begin < b.row_begin;
    });
    while (cut_count_ < task_count_ && tasks_[cut_count_].cut) ++cut_count_;
    // Each cut tile costs more than the share, so there are fewer than shares.
    CHECK(static_cast<size_t>(cut_count_) <= layout_.state_count);
    if (cut_count_ == 0) return;
    wave_segments_ = static_cast<int>(layout_.part_count) / cut_count_;
    int64_t cut_segments = 0;
    for (int i = 0; i < cut_count_; ++i) cut_segments += TileSegments(tasks_[i]);
    run_segments_ = static_cast<int>(std::clamp<int64_t>(
        cut_segments / (kRunsPerThread * ctx_.pool->thread_count()), 1, kRunSegmentsMax));
  }

  void PlanSlice(int index, int64_t share) {
    const AttentionSlice& slice = slices_[index];
    const int rows = slice.row_count * group_;
    if (rows == 0) return;
    const int64_t fitting = share / Visible(slice);
    const int tile_rows = static_cast<int>(
        std::clamp<int64_t>(fitting, kAttentionPartRowsMax, kAttentionTileRowsMax) / 6 * 6);
    for (int head = 0; head < shape_.kv_heads; ++head) {
      for (int begin = 0; begin < rows; begin += tile_rows) {
        TileTask task{index, head, begin, std::min(tile_rows, rows - begin), 0, false};
        task.cost = task.row_count * Windowed(TilePositions(task), task.row_count / group_);
        task.cut =
            task.cost > share && task.row_count <= kAttentionPartRowsMax && TileSegments(task) > 1;
        new (tasks_ + task_count_++) TileTask(task);
      }
    }
  }

  // Positions the tile's last row sees.
  int64_t TilePositions(const TileTask& task) const {
    return slices_[task.slice].position + (task.row_begin + task.row_count - 1) / group_ + 1;
  }
  // Of its first row's window on.
  int TileSegments(const TileTask& task) const {
    return SegmentCount(TilePositions(task)) - FirstSegmentOf(Tile(task));
  }

  AttentionTile Tile(const TileTask& task) const {
    const AttentionSlice& slice = slices_[task.slice];
    const size_t k_offset = slice.layer_offset + shape_.head_bytes() * task.kv_head;
    const int64_t head_begin = static_cast<int64_t>(task.kv_head) * group_ * shape_.head_dim;
    return {.blocks = slice.blocks.data(),
            .first_block = slice.first_block,
            .k_offset = k_offset,
            .v_offset = k_offset + shape_.key_bytes(),
            .kv_type = shape_.kv_type,
            .head_dim = shape_.head_dim,
            .group = group_,
            .window = shape_.window,
            .scale = shape_.scale,
            .q = q_ + slice.row_begin * ldq_ + head_begin,
            .ldq = ldq_,
            .out = out_ + slice.row_begin * ldout_ + head_begin,
            .ldout = ldout_,
            .position = slice.position,
            .row_begin = task.row_begin,
            .row_count = task.row_count};
  }

  float* TileScratch(int worker) const {
    return reinterpret_cast<float*>(scratch_ + layout_.tile_offset) + worker * layout_.tile_floats;
  }
  float* Parts(int cut_index) const {
    return reinterpret_cast<float*>(scratch_ + layout_.part_offset) +
           static_cast<size_t>(cut_index) * wave_segments_ * layout_.part_floats;
  }
  AttentionState StateAt(float* base) const {
    float* max = base + kAttentionPartRowsMax * AlignUp(shape_.head_dim, 16);
    return {.max = max, .sum = max + AlignUp(kAttentionPartRowsMax, 16), .out = base};
  }
  AttentionState CutState(int cut_index) const {
    return StateAt(reinterpret_cast<float*>(scratch_ + layout_.state_offset) +
                   cut_index * layout_.part_floats);
  }

  // The first `tile_count` whole tiles, and one wave of the cut ones from their segment `begin` on.
  void RunTilesAndParts(int tile_count, int begin) {
    const int runs = (wave_segments_ + run_segments_ - 1) / run_segments_;  // of a cut tile
    ctx_.pool->ParallelFor(tile_count + cut_count_ * runs, [&](int index, int worker) {
      if (index < tile_count) {
        kernels_.attend_tile(Tile(tasks_[cut_count_ + index]), TileScratch(worker));
        return;
      }
      const int cut_index = (index - tile_count) / runs;
      const int local = (index - tile_count) % runs * run_segments_;
      const int end = std::min(
          {begin + local + run_segments_, begin + wave_segments_, TileSegments(tasks_[cut_index])});
      if (begin + local >= end) return;
      const AttentionTile tile = Tile(tasks_[cut_index]);
      const int first = FirstSegmentOf(tile);
      kernels_.attend_segments(tile, first + begin + local, first + end,
                               StateAt(Parts(cut_index) + local * layout_.part_floats),
                               layout_.part_floats, TileScratch(worker));
    });
  }

  // Merges the wave's parts in order of segments; rows that saw their last one are finished.
  void MergeParts(int begin) {
    ctx_.pool->ParallelFor(cut_count_ * kAttentionPartRowsMax, [&](int index, int) {
      const int cut_index = index / kAttentionPartRowsMax;
      const int row = index % kAttentionPartRowsMax;
      const TileTask& task = tasks_[cut_index];
      const int segments = TileSegments(task);
      if (row >= task.row_count || begin >= segments) return;
      const int end = std::min(begin + wave_segments_, segments);
      const AttentionTile tile = Tile(task);
      const int first = FirstSegmentOf(tile);
      kernels_.merge_parts(tile, first + begin, first + end, StateAt(Parts(cut_index)),
                           layout_.part_floats, CutState(cut_index), row);
      if (end == segments) kernels_.finish_row(tile, CutState(cut_index), row);
    });
  }

  const KernelContext& ctx_;
  const AttentionKernels& kernels_;
  const AttentionShape& shape_;
  std::span<const AttentionSlice> slices_;
  const float* q_;
  int64_t ldq_;
  float* out_;
  int64_t ldout_;
  const ScratchLayout& layout_;
  std::byte* scratch_;
  int group_;
  TileTask* tasks_;  // [task_count_], cut ones first
  int task_count_ = 0;
  int cut_count_ = 0;
  int wave_segments_ = 0;  // parts of one cut tile in one wave
  int run_segments_ = 1;   // segments of one task
};

// Blocks first + piece, first + piece + pieces, ... of one slice and KV head.
void StorePiece(const AttentionKernels& kernels, const AttentionShape& shape,
                const AttentionSlice& slice, int head, int piece, int pieces, const float* k,
                int64_t ldk, const float* v, int64_t ldv) {
  const int64_t end = slice.position + slice.row_count;
  const int64_t column = static_cast<int64_t>(head) * shape.head_dim;
  for (int64_t block = slice.position / kBlockPositions + piece; block * kBlockPositions < end;
       block += pieces) {
    const int64_t first = std::max(slice.position, block * kBlockPositions);
    const int64_t last = std::min(end, (block + 1) * kBlockPositions);
    const int64_t row = slice.row_begin + (first - slice.position);
    std::byte* base =
        slice.blocks[block - slice.first_block] + slice.layer_offset + shape.head_bytes() * head;
    kernels.store({.k = k + row * ldk + column,
                   .ldk = ldk,
                   .v = v + row * ldv + column,
                   .ldv = ldv,
                   .k_block = base,
                   .v_block = base + shape.key_bytes(),
                   .kv_type = shape.kv_type,
                   .head_dim = shape.head_dim,
                   .slot_begin = static_cast<int>(first % kBlockPositions),
                   .row_count = static_cast<int>(last - first)});
  }
}

void CheckSlice(const AttentionSlice& slice) {
  CHECK(slice.row_count >= 0 && slice.row_begin >= 0 && slice.position >= 0);
  CHECK(slice.first_block >= 0 && slice.first_block % (kSegmentPositions / kBlockPositions) == 0);
  CHECK((slice.first_block + static_cast<int64_t>(slice.blocks.size())) * kBlockPositions >=
        slice.position + slice.row_count);
}

}  // namespace

const char* KvTypeName(KvType type) {
  switch (type) {
    case KvType::kF32:
      return "f32";
    case KvType::kF16:
      return "f16";
    case KvType::kQ8_0:
      return "q8_0";
  }
  return "?";
}

size_t AttentionShape::key_bytes() const {
  const size_t dims = head_dim;
  const size_t row = kv_type == KvType::kF32   ? 4 * dims
                     : kv_type == KvType::kF16 ? 2 * dims
                                               : dims + 2 * ((dims + 31) / 32);
  return row * kBlockPositions;
}

size_t AttentionShape::value_bytes() const {
  const size_t dims = head_dim;
  const size_t row = kv_type == KvType::kF32   ? 4 * dims
                     : kv_type == KvType::kF16 ? 2 * dims
                                               : dims + 2;
  return row * kBlockPositions;
}

namespace {

template <typename T>
T ReadAt(const std::byte* p, int64_t index) {
  T value;
  std::memcpy(&value, p + index * sizeof value, sizeof value);
  return value;
}

}  // namespace

float StoredKey(const AttentionShape& shape, const std::byte* head, int slot, int d) {
  const int64_t at = int64_t{d} * kBlockPositions + slot;
  if (shape.kv_type == KvType::kF32) return ReadAt<float>(head, at);
  if (shape.kv_type == KvType::kF16) return HalfToFloat(ReadAt<uint16_t>(head, at));
  const int64_t quad = int64_t{d} / 4 * kBlockPositions + slot;
  const int value = ReadAt<uint8_t>(head, quad * 4 + d % 4) - 128;
  const std::byte* scales = head + int64_t{shape.head_dim} * kBlockPositions;
  return static_cast<float>(value) *
         BFloat16ToFloat(ReadAt<uint16_t>(scales, int64_t{d} / 32 * kBlockPositions + slot));
}

float StoredValue(const AttentionShape& shape, const std::byte* head, int slot, int d) {
  const std::byte* values = head + shape.key_bytes();
  const int64_t at = int64_t{slot} * shape.head_dim + d;
  if (shape.kv_type == KvType::kF32) return ReadAt<float>(values, at);
  if (shape.kv_type == KvType::kF16) return HalfToFloat(ReadAt<uint16_t>(values, at));
  const int64_t pair = int64_t{slot} / 2 * shape.head_dim + d;
  const int value = ReadAt<int8_t>(values, pair * 2 + slot % 2);
  const std::byte* scales = values + int64_t{shape.head_dim} * kBlockPositions;
  return static_cast<float>(value) * BFloat16ToFloat(ReadAt<uint16_t>(scales, slot));
}

void StoreKv(const KernelContext& ctx, const AttentionShape& shape,
             std::span<const AttentionSlice> slices, const float* k, int64_t ldk, const float* v,
             int64_t ldv) {
  CheckShape(shape);
  int64_t rows = 0;
  for (const AttentionSlice& slice : slices) {
    CheckSlice(slice);
    rows += slice.row_count;
  }
  const AttentionKernels& kernels = Kernels(ctx.level);
  const int pieces = ctx.pool->thread_count();
  const int heads = shape.kv_heads;
  auto store = [&](int index, int) {
    StorePiece(kernels, shape, slices[index / (heads * pieces)], index / pieces % heads,
               index % pieces, pieces, k, ldk, v, ldv);
  };
  const int task_count = static_cast<int>(slices.size()) * heads * pieces;
  if (rows * heads * shape.head_dim <= kStoreSerialElements) {
    for (int i = 0; i < task_count; ++i) store(i, 0);
  } else {
    ctx.pool->ParallelFor(task_count, store);
  }
}

size_t AttentionScratchBytes(const AttentionShape& shape, int rows_max, int64_t positions_max,
                             int threads) {
  (void)positions_max;  // long contexts go in waves
  return ScratchLayout(shape, rows_max, threads).bytes;
}

void Attend(const KernelContext& ctx, const AttentionShape& shape,
            std::span<const AttentionSlice> slices, const float* q, int64_t ldq, float* out,
            int64_t ldout, std::span<std::byte> scratch) {
  CheckShape(shape);
  int rows = 0;
  for (const AttentionSlice& slice : slices) {
    CheckSlice(slice);
    rows += slice.row_count;
  }
  const ScratchLayout layout(shape, rows, ctx.pool->thread_count());
  CHECK(scratch.size() >= layout.bytes);
  CHECK(reinterpret_cast<uintptr_t>(scratch.data()) % 64 == 0);
  if (ctx.faults != nullptr && ctx.faults->Attend(ctx, shape, slices, q, ldq, out, ldout)) return;
  AttendCall(ctx, shape, slices, q, ldq, out, ldout, layout, scratch.data()).Run();
}

}  // namespace cairn
