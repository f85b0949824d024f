// What the layers of one Forward share: the rows, their positions and slices, and the scratch they
// work in. A layer reads `normed`, writes `branch`; everything else in the scratch is its own while
// it runs.
//
// Threads: one Step per Forward, on the engine thread; kernels split the work inside.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "kernels/attention.h"
#include "kernels/kernel_context.h"
#include "kernels/matmul_grouped.h"
#include "kernels/recurrent.h"
#include "kernels/rope.h"
#include "model/model.h"

namespace cairn {

// Widths of the scratch rows, the maximum over all layers of a model. A layer adds what it needs.
struct ScratchNeeds {
  int64_t hidden = 0;                       // width of the residual stream
  int64_t projected = 0;                    // input projections: q|k|v, gate|up, ...
  int64_t mixed = 0;                        // what the mixing operation puts out
  int64_t staged = 0;                       // between the two: convolved q|k|v, gathered queries
  int64_t gates = 0;                        // per-head scalars
  int64_t matmul_k = 0;                     // widest matmul input
  int64_t glu = 0;                          // widest gated row that is made in its int8 form
  bool int8_normed = false;                 // some weights that read `normed` are quantised
  int64_t rope_half = 0;                    // RopeTable::half()
  int64_t local_rope_half = 0;              // of a second table, for window layers
  std::optional<AttentionShape> attention;  // the same in all layers
  // Mixtures of experts: a row goes to `experts_used` of `experts`.
  int experts = 0;
  int experts_used = 0;
  int64_t expert_k = 0;  // widest input of an expert's matmul
  int64_t routed = 0;    // outputs of a row's experts
  // Weights of the experts a row does not go to, a sum over all layers: what a step of one row
  // leaves unread.
  size_t idle_expert_bytes = 0;
};

// Who goes where in a mixture of experts. A pair is one row at one expert of its choice.
struct ExpertScratch {
  struct Group {
    int expert, row_begin, row_count;
  };
  int32_t* ids;                      // [rows, used], ascending in a row
  float* weights;                    // [rows, used]
  int32_t* slots;                    // [rows, used]: where the pair lies in the order by expert
  int32_t* rows;                     // [pairs], in that order
  int32_t* offsets;                  // [experts + 1]
  Group* groups;                     // [experts]: experts that have rows
  MatMulGroup* matmuls;              // [experts]
  std::span<std::byte> activations;  // ActivationBytes of all pairs
};

// All memory of a step. Owns it. Allocated once for rows_max rows.
class ModelWorkspace : public Workspace {
 public:
  ModelWorkspace(const ScratchNeeds& needs, int rows_max, int logit_rows_max, int threads,
                 int64_t positions_max);
  size_t bytes() const override { return memory_bytes_; }

  const int rows_max;
  const int logit_rows_max;
  // Rows of float32, 64-byte aligned.
  float* hidden;       // [rows, hidden]     residual stream
  float* normed;       // [rows, hidden]     input of the layer
  float* branch;       // [rows, hidden]     output of the layer, before it is added to the stream
  float* projected;    // [rows, projected]
  float* staged;       // [rows, staged]
  float* mixed;        // [rows, mixed]
  float* gates;        // [rows, gates]
  float* head_rows;    // [logit_rows, hidden]
  float* rope_cos;     // [rows, rope_half]
  float* rope_sin;     // [rows, rope_half]
  float* local_cos;    // [rows, local_rope_half]
  float* local_sin;    // [rows, local_rope_half]
  int64_t* positions;  // [rows]
  std::span<std::byte> activations;  // ActivationBytes of the widest matmul
  // The int8 form of `normed`, if some layer wants it; and where it lies.
  std::optional<Activations> normed_int8;
  std::span<std::byte> normed_space;
  std::span<std::byte> glu;        // ActivationBytes of the widest gated row
  std::span<std::byte> attention;  // AttentionScratchBytes
  float* routed;                   // [rows, routed]
  ExpertScratch experts;

  // Grow to the most slices and taps ever seen, so a steady step allocates nothing.
  std::vector<AttentionSlice> attention_slices;
  std::vector<RecurrentSlice> recurrent_slices;
  std::vector<StateTap> taps;
  std::vector<std::byte*> window_blocks;  // of the slices of one round (window_kv.h)
  std::vector<int> window_rows_done;      // [slices]

 private:
  // In huge pages, since rows lie several pages apart; resident once touched.
  std::shared_ptr<std::byte> memory_;
  size_t memory_bytes_;
};

struct Step {
  const KernelContext& ctx;
  int rows;
  std::span<const ForwardSlice> slices;
  const RopeTable& rope;
  RopeAngles angles;            // of the rows' positions
  const RopeTable* local_rope;  // of window layers; null if the model has none
  RopeAngles local_angles;
  ModelWorkspace& scratch;

  // The slices as the kernels want them: the layer's KV part at `kv_offset` of each block, the
  // layer's state part at `state_offset` of each state buffer, taps included. Valid until the next
  // call.
  std::span<const AttentionSlice> AttentionSlices(size_t kv_offset) const;
  std::span<const RecurrentSlice> RecurrentSlices(size_t state_offset) const;
};

}  // namespace cairn
