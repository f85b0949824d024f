// A model that passes everything on to another one, counts what the engine asks of it, and may
// plant a kernel fault.
//
// Threads: as Model; one Forward at a time.
#pragma once

#include <cstdint>
#include <memory>

#include "model/model.h"

namespace cairn::law {

// What came along in the batches.
struct BatchCounts {
  int64_t steps = 0, rows = 0;
  int64_t inner_taps = 0;     // taps before the last row of their slice
  int64_t mixed_steps = 0;    // steps with a slice of one row and a longer one
  int64_t two_segment = 0;    // slices whose last row attends to two segments of keys or more
  int64_t inside_block = 0;   // slices that begin inside a block
  int64_t batched_steps = 0;  // steps with two slices or more
};

class WatchedModel : public Model {
 public:
  // `inner`, `faults` (may be null) and `counts` (may be null) outlive this.
  WatchedModel(const Model& inner, const KernelFaults* faults, BatchCounts* counts)
      : inner_(inner), faults_(faults), counts_(counts) {}

  const Model& inner() const { return inner_; }
  const ModelInfo& info() const override { return inner_.info(); }
  const StateLayout& layout() const override { return inner_.layout(); }
  std::unique_ptr<Workspace> CreateWorkspace(int rows_max, int logit_rows_max,
                                             int threads) const override {
    return inner_.CreateWorkspace(rows_max, logit_rows_max, threads);
  }
  void Forward(const KernelContext& ctx, const ForwardBatch& batch,
               Workspace& workspace) const override;
  void Logits(const KernelContext& ctx, std::span<const float* const> hidden_rows, float* logits,
              Workspace& workspace) const override;

 private:
  const Model& inner_;
  const KernelFaults* const faults_;
  BatchCounts* const counts_;
};

}  // namespace cairn::law
