#include "kernels/matmul.h"

#include <algorithm>

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

// Rows whose activations stay in the L2 cache while the panels pass: 384 KiB, whole tiles of 6.
int BlockRows(const PackedMatrix& w) {
  const int64_t row_bytes = w.k() * (IsQuantized(w.type()) ? 1 : 4);
  return static_cast<int>(std::max<int64_t>(393216 / row_bytes / 6, 8) * 6);
}

void RunBlock(PanelFn run_panel, const Activations& a, const PackedMatrix& w, MatMulRange panels,
              MatMulRange rows, float* y, int64_t ldy) {
  PanelCall call = {};
  call.type = w.type();
  call.k = a.k;
  call.rows = static_cast<int>(rows.end - rows.begin);
  call.x = a.x + rows.begin * a.k;
  if (a.q != nullptr) {
    call.q = a.q + rows.begin * a.k;
    call.blocks = a.blocks + rows.begin * (a.k / 32);
  }
  call.ldy = ldy;
  const size_t panel_bytes = w.packed_bytes() / static_cast<size_t>(MatMulPanelCount(w));
  for (int64_t p = panels.begin; p < panels.end; ++p) {
    call.panel =
        reinterpret_cast<const uint8_t*>(w.panels()) + static_cast<size_t>(p) * panel_bytes;
    call.columns = static_cast<int>(std::min<int64_t>(kPanelColumns, w.n() - p * kPanelColumns));
    call.y = y + rows.begin * ldy + p * kPanelColumns;
    run_panel(call);
  }
}

}  // namespace

int64_t MatMulPanelCount(const PackedMatrix& w) {
  return (w.n() + kPanelColumns - 1) / kPanelColumns;
}

void RunMatMulPanels(CpuLevel level, const Activations& a, const PackedMatrix& w,
                     MatMulRange panels, MatMulRange rows, float* y, int64_t ldy) {
  const PanelFn run_panel = SelectPanel(level, w.type());
  const int block_rows = BlockRows(w);
  for (int64_t r = rows.begin; r < rows.end; r += block_rows) {
    RunBlock(run_panel, a, w, panels, {r, std::min(rows.end, r + block_rows)}, y, ldy);
  }
}

size_t ActivationBytes(int rows, int64_t k) {
  const size_t values = static_cast<size_t>(rows) * static_cast<size_t>(k);
  return AlignUp(values, 64) + AlignUp(values / 32 * sizeof(ActivationBlock), 64);
}

Activations PrepareActivations(const KernelContext& ctx, const float* x, int rows, int64_t k,
                               std::span<std::byte> workspace) {
  CHECK(rows >= 0 && k % 32 == 0 && workspace.size() >= ActivationBytes(rows, k));
  CHECK(reinterpret_cast<uintptr_t>(workspace.data()) % 64 == 0);
  int8_t* q = reinterpret_cast<int8_t*>(workspace.data());
  const size_t values = static_cast<size_t>(rows) * static_cast<size_t>(k);
  auto* blocks = reinterpret_cast<ActivationBlock*>(workspace.data() + AlignUp(values, 64));
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
  CHECK(a.k == w.k() && ldy >= w.n());
  CHECK(!IsQuantized(w.type()) || a.q != nullptr);
  if (a.rows <= 0 || w.n() <= 0) return;
  if (ctx.faults != nullptr && ctx.faults->MatMul(ctx, a, w, y, ldy)) return;
  const int64_t panels = MatMulPanelCount(w);
  // A task is a run of panels and, where there are too few of them, a run of rows.
  const int threads = ctx.pool->thread_count();
  const int64_t tasks_wanted = threads == 1 ? 1 : threads * kTasksPerThread;
  const int64_t panel_tasks = std::min(panels, tasks_wanted);
  const int64_t row_tasks =
      std::clamp<int64_t>(tasks_wanted / panel_tasks, 1, std::max(1, a.rows / kRowsPerTaskMin));
  ctx.pool->ParallelFor(static_cast<int>(panel_tasks * row_tasks), [&](int task, int) {
    const int64_t p_task = task / row_tasks;
    const int64_t r_task = task % row_tasks;
    const MatMulRange rows = {a.rows * r_task / row_tasks, a.rows * (r_task + 1) / row_tasks};
    const MatMulRange panels_of_task = {panels * p_task / panel_tasks,
                                        panels * (p_task + 1) / panel_tasks};
    RunMatMulPanels(ctx.level, a, w, panels_of_task, rows, y, ldy);
  });
}

}  // namespace cairn
