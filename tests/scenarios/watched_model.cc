#include "scenarios/watched_model.h"

#include "kernels/attention.h"

namespace cairn::law {

void WatchedModel::Forward(const KernelContext& ctx, const ForwardBatch& batch,
                           Workspace& workspace) const {
  if (counts_ != nullptr) {
    bool one_row = false, longer = false;
    for (const ForwardSlice& slice : batch.slices) {
      (slice.row_count == 1 ? one_row : longer) = true;
      for (const ForwardTap& tap : slice.taps) counts_->inner_taps += tap.row + 1 < slice.row_count;
      counts_->two_segment += slice.position + slice.row_count > kSegmentPositions;
      counts_->inside_block += slice.position % kBlockPositions != 0;
    }
    ++counts_->steps;
    counts_->rows += static_cast<int64_t>(batch.tokens.size());
    counts_->mixed_steps += one_row && longer;
    counts_->batched_steps += batch.slices.size() > 1;
  }
  inner_.Forward({ctx.level, ctx.pool, faults_}, batch, workspace);
}

void WatchedModel::Logits(const KernelContext& ctx, std::span<const float* const> hidden_rows,
                          float* logits, Workspace& workspace) const {
  inner_.Logits({ctx.level, ctx.pool, faults_}, hidden_rows, logits, workspace);
}

}  // namespace cairn::law
