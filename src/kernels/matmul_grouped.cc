#include "kernels/matmul_grouped.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/kernel_faults.h"
#include "kernels/matmul_panels.h"

namespace cairn {
namespace {

constexpr int kPanelsPerTaskMin = 4;
constexpr int64_t kTasksPerThread = 8;

Activations RowsOf(const Activations& a, int begin, int count) {
  Activations part = a;
  part.rows = count;
  if (a.x != nullptr) part.x = a.x + begin * a.k;
  if (a.q != nullptr) {
    part.q = a.q + begin * a.k;
    part.blocks = a.blocks + begin * (a.k / 32);
  }
  return part;
}

}  // namespace

void GroupedMatMul(const KernelContext& ctx, const Activations& a,
                   std::span<const MatMulGroup> groups, float* y, int64_t ldy) {
  if (groups.empty()) return;
  for (const MatMulGroup& group : groups) {
    CHECK(group.w->k() == a.k && group.w->n() == groups[0].w->n() && ldy >= group.w->n());
    CHECK(!IsQuantized(group.w->type()) || a.q != nullptr);
    CHECK(group.row_begin >= 0 && group.row_count >= 0 &&
          group.row_begin + group.row_count <= a.rows);
  }
  if (ctx.faults != nullptr) {
    for (const MatMulGroup& group : groups) {
      if (group.row_count == 0) continue;
      MatMul(ctx, RowsOf(a, group.row_begin, group.row_count), *group.w, y + group.row_begin * ldy,
             ldy);
    }
    return;
  }
  // A task is a run of panels of one group, so that few and many experts both fill the threads.
  const int64_t panels = MatMulPanelCount(*groups[0].w);
  const int64_t tasks_wanted = ctx.pool->thread_count() * kTasksPerThread;
  const int64_t splits =
      std::clamp<int64_t>((tasks_wanted + static_cast<int64_t>(groups.size()) - 1) /
                              static_cast<int64_t>(groups.size()),
                          1, std::max<int64_t>(1, panels / kPanelsPerTaskMin));
  ctx.pool->ParallelFor(static_cast<int>(groups.size() * splits), [&](int task, int) {
    const MatMulGroup& group = groups[task / splits];
    if (group.row_count == 0) return;
    const int64_t split = task % splits;
    RunMatMulPanels(ctx.level, a, *group.w,
                    {panels * split / splits, panels * (split + 1) / splits},
                    {group.row_begin, group.row_begin + group.row_count}, y, ldy);
  });
}

}  // namespace cairn
