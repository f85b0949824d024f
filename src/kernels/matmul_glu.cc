#include "kernels/matmul_glu.h"

#include <algorithm>
#include <cstdint>

#include "base/check.h"
#include "kernels/matmul_panels.h"
#include "kernels/moe_ops.h"
#include "kernels/vector_ops.h"

namespace cairn {
namespace {

constexpr int kColumns = 32;  // of a panel; and a block of the int8 form
// Rows whose sums, 96 KiB, and activations stay in the L2 cache. Fewer would unpack the panels too
// often.
constexpr int kRows = 256;
constexpr int64_t kActivationBytes = 393216;
constexpr int64_t kTasksPerThread = 8;
constexpr int kRowsPerTaskMin = 24;

struct GluCall {
  const KernelContext& ctx;
  const Activations& a;
  const PackedMatrix& gate_up;
  GluActivation activation;
  int64_t n;
  int8_t* q;                // [rows, n]
  ActivationBlock* blocks;  // [rows, n / 32]
};

// Columns [32 panel, 32 panel + 32) of some rows, at most kRows.
void RunPanel(const GluCall& call, int64_t panel, MatMulRange rows) {
  alignas(64) float sums[kRows * 2 * kColumns];  // [rows, gate | up]
  alignas(64) float h[kRows * kColumns];
  const CpuLevel level = call.ctx.level;
  const int64_t panels = call.n / kColumns;
  RunMatMulPanel(level, call.a, call.gate_up, panel, rows, sums, 2 * kColumns);
  RunMatMulPanel(level, call.a, call.gate_up, panels + panel, rows, sums + kColumns, 2 * kColumns);
  const int count = static_cast<int>(rows.end - rows.begin);
  if (call.activation == GluActivation::kSilu) {
    SwiGlu(level, sums, 2 * kColumns, count, kColumns, h);
  } else {
    GeGlu(level, sums, 2 * kColumns, count, kColumns, h);
  }
  for (int r = 0; r < count; ++r) {
    const int64_t row = rows.begin + r;
    QuantizeRow(call.ctx, h + r * kColumns, kColumns, call.q + row * call.n + panel * kColumns,
                call.blocks + row * panels + panel);
  }
}

}  // namespace

Activations GluMatMul(const KernelContext& ctx, const Activations& a, const PackedMatrix& gate_up,
                      GluActivation activation, std::span<std::byte> workspace) {
  const int64_t n = gate_up.n() / 2;
  CHECK(a.k == gate_up.k() && a.q != nullptr && IsQuantized(gate_up.type()));
  CHECK(gate_up.n() == 2 * n && n % kColumns == 0);
  const ActivationSpace space = CarveActivations(a.rows, n, workspace);
  const GluCall call = {ctx, a, gate_up, activation, n, space.q, space.blocks};
  const int threads = ctx.pool->thread_count();
  const int64_t panels = n / kColumns;
  const int64_t tasks_wanted = threads == 1 ? 1 : threads * kTasksPerThread;
  const int64_t panel_tasks = std::min(panels, tasks_wanted);
  const int64_t row_tasks = panels == 0
                                ? 0
                                : std::clamp<int64_t>(tasks_wanted / panel_tasks, 1,
                                                      std::max(1, a.rows / kRowsPerTaskMin));
  const int64_t rows_at_once = std::clamp<int64_t>(kActivationBytes / a.k / 6 * 6, 48, kRows);
  ctx.pool->ParallelFor(static_cast<int>(panel_tasks * row_tasks), [&](int task, int) {
    const int64_t p_task = task / row_tasks, r_task = task % row_tasks;
    const int64_t rows_end = a.rows * (r_task + 1) / row_tasks;
    for (int64_t row = a.rows * r_task / row_tasks; row < rows_end; row += rows_at_once) {
      const MatMulRange rows = {row, std::min(rows_end, row + rows_at_once)};
      for (int64_t p = panels * p_task / panel_tasks; p < panels * (p_task + 1) / panel_tasks; ++p)
        RunPanel(call, p, rows);
    }
  });
  return {a.rows, n, nullptr, space.q, space.blocks};
}

}  // namespace cairn
