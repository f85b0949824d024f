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
constexpr int64_t kTasksPerThreadFewRows = 4;
constexpr int kFewRows = 12;
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

// The columns of some panels and rows, at most kRows of their product.
void RunPanels(const GluCall& call, MatMulRange panels, MatMulRange rows) {
  alignas(64) float sums[kRows * 2 * kColumns];  // [rows, gate | up]
  alignas(64) float h[kRows * kColumns];
  const CpuLevel level = call.ctx.level;
  const int64_t all = call.n / kColumns;
  const int64_t columns = (panels.end - panels.begin) * kColumns;
  const MatMulRange up = {all + panels.begin, all + panels.end};
  RunMatMulPanelsAt(level, call.a, call.gate_up, panels, rows, sums, 2 * columns);
  RunMatMulPanelsAt(level, call.a, call.gate_up, up, rows, sums + columns, 2 * columns);
  const int count = static_cast<int>(rows.end - rows.begin);
  if (call.activation == GluActivation::kSilu) {
    SwiGlu(level, sums, 2 * columns, count, columns, h);
  } else {
    GeGlu(level, sums, 2 * columns, count, columns, h);
  }
  for (int r = 0; r < count; ++r) {
    const int64_t row = rows.begin + r;
    QuantizeRow(call.ctx, h + r * columns, columns, call.q + row * call.n + panels.begin * kColumns,
                call.blocks + row * all + panels.begin);
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
  const int64_t tasks_per_thread = a.rows <= kFewRows ? kTasksPerThreadFewRows : kTasksPerThread;
  const int64_t tasks_wanted = threads == 1 ? 1 : threads * tasks_per_thread;
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
      // With few rows many panels of the gate in one go: reading them is nearly all there is to
      // do, and after each jump to those of up, or back, memory has to answer first.
      const int64_t panels_at_once = kRows / (rows.end - rows.begin);
      const int64_t end = panels * (p_task + 1) / panel_tasks;
      for (int64_t p = panels * p_task / panel_tasks; p < end; p += panels_at_once)
        RunPanels(call, {p, std::min(end, p + panels_at_once)}, rows);
    }
  });
  return {a.rows, n, nullptr, space.q, space.blocks};
}

}  // namespace cairn
