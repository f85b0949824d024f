// Mistakes that real engines make, planted to see that the law's property test notices them. Each
// wraps a kernel: it changes what goes in or comes out and leaves the arithmetic to the real one.
// The exception is attention, whose key segments lie inside the kernel: it is written out here once
// more, plainly, with the border of its segments as the only question.
#pragma once

#include "kernels/kernel_faults.h"

namespace cairn::law {

enum class SegmentOrigin {
  kAbsolute,    // as the law wants it: every 256 positions from 0. The control, no fault
  kChunkStart,  // keys before the chunk, then every 256 positions from its first row
};

class PlainAttention : public KernelFaults {
 public:
  explicit PlainAttention(SegmentOrigin origin) : origin_(origin) {}
  bool Attend(const KernelContext& ctx, const AttentionShape& shape,
              std::span<const AttentionSlice> slices, const float* q, int64_t ldq, float* out,
              int64_t ldout) const override;

 private:
  const SegmentOrigin origin_;
};

// One activation scale for all rows of a matmul, instead of one per row and block.
class PerTensorScale : public KernelFaults {
 public:
  bool QuantizeRows(const float* x, int rows, int64_t k, int8_t* q,
                    ActivationBlock* blocks) const override;
};

// A matmul of one row accumulates the two halves of k apart and adds them; a matmul of more rows
// does not.
class SplitKForOneRow : public KernelFaults {
 public:
  bool MatMul(const KernelContext& ctx, const Activations& a, const PackedMatrix& w, float* y,
              int64_t ldy) const override;
};

// The conv state of a tap is the one of the row before.
class ConvTapOneRowOff : public KernelFaults {
 public:
  bool Conv1d(const KernelContext& ctx, const Conv1dShape& shape,
              std::span<const RecurrentSlice> slices, const float* u, int64_t ldu,
              std::span<const float> w, std::span<const float> bias, float* y,
              int64_t ldy) const override;
};

// An expert takes so many rows of a step and no more, as in training: what a row loses depends on
// the rows before it.
class ExpertCapacity : public KernelFaults {
 public:
  bool RouteExperts(const KernelContext& ctx, const RouterShape& shape, float* logits, int64_t ld,
                    const float* bias, int rows, int32_t* ids, float* weights) const override;
};

// The scan's memory of a tap is the one at the end of its slice.
class ScanTapAtTheEnd : public KernelFaults {
 public:
  bool SsdScan(const KernelContext& ctx, const SsdShape& shape,
               std::span<const RecurrentSlice> slices, const float* u, const float* b,
               const float* c, int64_t ld, const float* dt, const float* decay, const float* d,
               float* out, int64_t ldout) const override;
};

}  // namespace cairn::law
