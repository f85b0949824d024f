#include "kernels/matmul.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "kernels/kernel_faults.h"
#include "kernels/matmul_panel.h"
#include "kernels/matmul_panels.h"

namespace cairn {
namespace {

constexpr int kPanelColumns = 32;
// Tasks per thread, so that a thread that lost its core for a while does not hold up the others.
constexpr int64_t kTasksPerThread = 8;
constexpr int kRowsPerTaskMin = 24;
constexpr size_t kOutputsMax = 8;  // matrices of one list

using PanelFn = void (*)(const PanelCall&);

PanelFn SelectPanel(CpuLevel level, WeightType type) {
#if defined(__x86_64__)
  const bool affine = AffineFormatOf(type).has_value();
  if (level == CpuLevel::kAvx512) {
    if (affine) return MatMulAffinePanelAvx512;
    return IsQuantized(type) ? MatMulPanelAvx512 : MatMulFloatPanelAvx512;
  }
  if (level == CpuLevel::kAvx2) {
    if (affine) return MatMulAffinePanelAvx2;
    return IsQuantized(type) ? MatMulPanelAvx2 : MatMulFloatPanelAvx2;
  }
#endif
  return MatMulPanelScalar;
}

// Rows of a block: `rows` cut evenly, so that the last block does not share an unpacked panel among
// too few, into blocks whose activations stay in the L2 cache while the panels pass (384 KiB),
// whole tiles of 6.
int64_t BlockRows(const PackedMatrix& w, int64_t rows) {
  const WeightType type = w.type();
  const int64_t row_bytes = w.k() * (IsQuantized(type) ? 1 : 4);
  // A panel of halves is converted for each block, which is worth 96 rows from the L3 cache.
  const int64_t tiles_min = type == WeightType::kF16 || type == WeightType::kBF16 ? 16 : 8;
  const int64_t rows_max = std::max(393216 / row_bytes / 6, tiles_min) * 6;
  const int64_t blocks = std::max<int64_t>((rows + rows_max - 1) / rows_max, 1);
  return ((rows + blocks - 1) / blocks + 5) / 6 * 6;
}

// From so many k on a panel is computed in several passes, which read and write its sums again.
int64_t OnePassK(const PackedMatrix& w) { return IsQuantized(w.type()) ? 1024 : 256; }

// Where such passes keep their sums: rows of y often lie a power of two apart, and a few of those
// fill the cache sets they share.
struct PassSums {
  static constexpr int kRowsMax = 384;
  static constexpr int kRowsMin = 49;  // fewer are computed in one pass, or fit the L1 cache
  alignas(64) float sums[kRowsMax * kPanelColumns];
};

void RunPanelInPasses(PanelFn run_panel, PanelCall call) {
  PassSums local;  // of no defined value until the panel is computed
  float* y = call.y;
  const int64_t ldy = call.ldy;
  call.y = local.sums;
  call.ldy = kPanelColumns;
  run_panel(call);
  for (int r = 0; r < call.rows; ++r) {
    std::memcpy(y + r * ldy, local.sums + r * kPanelColumns, sizeof(float) * call.columns);
  }
}

// Panels [panels) for rows [rows); y: where row rows.begin of the first panel goes.
void RunBlock(PanelFn run_panel, const Activations& a, const PackedMatrix& w, MatMulRange panels,
              MatMulRange rows, float* y, int64_t ldy) {
  PanelCall call = {};
  call.type = w.type();
  call.k = a.k;
  call.rows = static_cast<int>(rows.end - rows.begin);
  if (a.x != nullptr) call.x = a.x + rows.begin * a.k;
  if (a.q != nullptr) {
    call.q = a.q + rows.begin * a.k;
    call.blocks = a.blocks + rows.begin * (a.k / 32);
  }
  call.ldy = ldy;
  const bool in_passes =
      a.k > OnePassK(w) && call.rows >= PassSums::kRowsMin && call.rows <= PassSums::kRowsMax;
  const size_t panel_bytes = w.packed_bytes() / static_cast<size_t>(MatMulPanelCount(w));
  for (int64_t p = panels.begin; p < panels.end; ++p) {
    call.panel =
        reinterpret_cast<const uint8_t*>(w.panels()) + static_cast<size_t>(p) * panel_bytes;
    call.columns = static_cast<int>(std::min<int64_t>(kPanelColumns, w.n() - p * kPanelColumns));
    call.y = y + (p - panels.begin) * kPanelColumns;
    in_passes ? RunPanelInPasses(run_panel, call) : run_panel(call);
  }
}

// How the work on one of several matrices is cut: into runs of panels and, where there are too few
// of them, runs of rows.
struct OutputTasks {
  int64_t panel_tasks, row_tasks;
  int end;  // of its numbers in the list
};

// Each matrix gets tasks by its share of the bytes. Returns the number of tasks.
int PlanTasks(std::span<const MatMulOutput> outputs, int rows, int threads,
              std::array<OutputTasks, kOutputsMax>& tasks) {
  size_t bytes = 0;
  for (const MatMulOutput& out : outputs) bytes += out.w->packed_bytes();
  const double tasks_per_byte = static_cast<double>(threads == 1 ? 1 : threads * kTasksPerThread) /
                                static_cast<double>(std::max<size_t>(bytes, 1));
  int end = 0;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const PackedMatrix& w = *outputs[i].w;
    const auto wanted =
        std::max<int64_t>(1, std::llround(tasks_per_byte * static_cast<double>(w.packed_bytes())));
    OutputTasks& t = tasks[i];
    t.panel_tasks = std::min(MatMulPanelCount(w), wanted);
    t.row_tasks = t.panel_tasks == 0 ? 0
                                     : std::clamp<int64_t>(wanted / t.panel_tasks, 1,
                                                           std::max(1, rows / kRowsPerTaskMin));
    end += static_cast<int>(t.panel_tasks * t.row_tasks);
    t.end = end;
  }
  return end;
}

// One matrix after the other, each as a planted fault of a test wants it.
void RunFaulty(const KernelContext& ctx, const Activations& a,
               std::span<const MatMulOutput> outputs) {
  KernelContext sound = ctx;
  sound.faults = nullptr;
  for (const MatMulOutput& out : outputs) {
    if (!ctx.faults->MatMul(ctx, a, *out.w, out.y, out.ldy))
      MatMul(sound, a, *out.w, out.y, out.ldy);
  }
}

}  // namespace

int64_t MatMulPanelCount(const PackedMatrix& w) {
  return (w.n() + kPanelColumns - 1) / kPanelColumns;
}

void RunMatMulPanels(CpuLevel level, const Activations& a, const PackedMatrix& w,
                     MatMulRange panels, MatMulRange rows, float* y, int64_t ldy) {
  const PanelFn run_panel = SelectPanel(level, w.type());
  const int64_t block_rows = BlockRows(w, rows.end - rows.begin);
  for (int64_t r = rows.begin; r < rows.end; r += block_rows) {
    RunBlock(run_panel, a, w, panels, {r, std::min(rows.end, r + block_rows)},
             y + r * ldy + panels.begin * kPanelColumns, ldy);
  }
}

void RunMatMulPanelsAt(CpuLevel level, const Activations& a, const PackedMatrix& w,
                       MatMulRange panels, MatMulRange rows, float* y, int64_t ldy) {
  RunBlock(SelectPanel(level, w.type()), a, w, panels, rows, y, ldy);
}

size_t ActivationBytes(int rows, int64_t k) {
  const size_t values = static_cast<size_t>(rows) * static_cast<size_t>(k);
  return AlignUp(values, 64) + AlignUp(values / 32 * sizeof(ActivationBlock), 64);
}

ActivationSpace CarveActivations(int rows, int64_t k, std::span<std::byte> workspace) {
  CHECK(rows >= 0 && k % 32 == 0 && workspace.size() >= ActivationBytes(rows, k));
  CHECK(reinterpret_cast<uintptr_t>(workspace.data()) % 64 == 0);
  const size_t values = static_cast<size_t>(rows) * static_cast<size_t>(k);
  std::byte* blocks = workspace.data() + AlignUp(values, 64);
  return {reinterpret_cast<int8_t*>(workspace.data()), reinterpret_cast<ActivationBlock*>(blocks)};
}

Activations PrepareActivations(const KernelContext& ctx, const float* x, int rows, int64_t k,
                               std::span<std::byte> workspace) {
  const auto [q, blocks] = CarveActivations(rows, k, workspace);
  if (ctx.faults != nullptr && ctx.faults->QuantizeRows(x, rows, k, q, blocks))
    return {rows, k, x, q, blocks};
  // Waking the pool costs as much as quantising some thousand values.
  const int rows_per_task =
      static_cast<int>(std::clamp<int64_t>(16384 / std::max<int64_t>(k, 1), 1, 64));
  const int tasks = (rows + rows_per_task - 1) / rows_per_task;
  ctx.pool->ParallelFor(tasks, [&](int task, int) {
    const int end = std::min(rows, (task + 1) * rows_per_task);
    for (int r = task * rows_per_task; r < end; ++r) {
      QuantizeRow(ctx, x + r * k, k, q + r * k, blocks + r * (k / 32));
    }
  });
  return {rows, k, x, q, blocks};
}

void MatMul(const KernelContext& ctx, const Activations& a, const PackedMatrix& w, float* y,
            int64_t ldy) {
  const MatMulOutput output = {&w, y, ldy};
  MatMulAll(ctx, a, {&output, 1});
}

void MatMulAll(const KernelContext& ctx, const Activations& a,
               std::span<const MatMulOutput> outputs) {
  for (; outputs.size() > kOutputsMax; outputs = outputs.subspan(kOutputsMax))
    MatMulAll(ctx, a, outputs.first(kOutputsMax));
  for (const MatMulOutput& out : outputs) {
    CHECK(a.k == out.w->k() && out.ldy >= out.w->n());
    CHECK(!IsQuantized(out.w->type()) || a.q != nullptr);
  }
  if (a.rows <= 0) return;
  if (ctx.faults != nullptr) return RunFaulty(ctx, a, outputs);
  std::array<OutputTasks, kOutputsMax> tasks;
  const int count = PlanTasks(outputs, a.rows, ctx.pool->thread_count(), tasks);
  ctx.pool->ParallelFor(count, [&](int task, int) {
    size_t i = 0;
    while (task >= tasks[i].end) ++i;
    const OutputTasks& t = tasks[i];
    const int64_t index = task - (i == 0 ? 0 : tasks[i - 1].end);
    const int64_t p_task = index / t.row_tasks;
    const int64_t r_task = index % t.row_tasks;
    const int64_t panels = MatMulPanelCount(*outputs[i].w);
    const MatMulRange rows = {a.rows * r_task / t.row_tasks, a.rows * (r_task + 1) / t.row_tasks};
    const MatMulRange panels_of_task = {panels * p_task / t.panel_tasks,
                                        panels * (p_task + 1) / t.panel_tasks};
    RunMatMulPanels(ctx.level, a, *outputs[i].w, panels_of_task, rows, outputs[i].y,
                    outputs[i].ldy);
  });
}

}  // namespace cairn
