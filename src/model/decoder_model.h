// The frame all decoders share: embedding, residual stream, final norm, head, hidden rows. An
// architecture adds its layers and writes Forward as the recipe it is:
//
//   Step step = Begin(...);                       hidden = embedding of the tokens
//   for each layer: Norm, mixer, AddBranch, Norm, ffn, AddBranch
//   Finish(step, batch);                          final norm, hidden rows to states, logits
//
// Threads: immutable after load.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"
#include "model/layers/step.h"
#include "model/load.h"
#include "model/model.h"
#include "model/state_tensor.h"
#include "model/weights.h"

namespace cairn {

class DecoderModel : public Model {
 public:
  const ModelInfo& info() const override { return info_; }
  const StateLayout& layout() const override { return layout_; }
  std::unique_ptr<Workspace> CreateWorkspace(int rows_max, int logit_rows_max,
                                             int threads) const override;
  void Logits(const KernelContext& ctx, std::span<const float* const> hidden_rows, float* logits,
              Workspace& workspace) const override;

  // The state after `position` tokens, by layer, in the checkpoint's order (state_tensor.h).
  virtual std::vector<StateTensor> ExportState(const std::byte* state,
                                               std::span<std::byte* const> blocks,
                                               int64_t position) const = 0;

 protected:
  DecoderModel(DecoderConfig config, StateLayout layout, RopeTable rope, KvType kv_type);

  // Loading: the frame's tensors first, then the architecture's layers (AddNeeds for each), then
  // the facts that need all of them.
  Status LoadFrame(Weights& weights, std::string_view final_norm = "output_norm.weight");
  // A second rotary table, for the layers that ask for Positions::kLocalRotary.
  void SetLocalRope(RopeTable rope);
  void FinishLoad(const ModelFile& file, const Weights& weights, const LoadOptions& options);

  Step Begin(const KernelContext& ctx, const ForwardBatch& batch, Workspace& workspace) const;
  // normed = RMSNorm(hidden; weight)
  void Norm(const Step& step, const std::vector<float>& weight) const;
  // hidden += residual_scale * branch
  void AddBranch(const Step& step) const;
  void Finish(const Step& step, const ForwardBatch& batch) const;

  const DecoderConfig& config() const { return config_; }
  const AttentionShape& attention_shape() const { return attention_shape_; }
  ScratchNeeds& needs() { return needs_; }

 private:
  const PackedMatrix& head() const { return head_.has_value() ? *head_ : embedding_; }
  // logits [rows, vocab] of scratch.head_rows.
  void ApplyHead(const KernelContext& ctx, int rows, float* logits, ModelWorkspace& scratch) const;
  uint64_t Fingerprint(const ModelFile& file, const Weights& weights) const;

  DecoderConfig config_;
  AttentionShape attention_shape_;
  StateLayout layout_;
  RopeTable rope_;
  std::optional<RopeTable> local_rope_;
  ScratchNeeds needs_;
  ModelInfo info_;
  PackedMatrix embedding_;            // [vocab, hidden]
  std::optional<PackedMatrix> head_;  // [vocab, hidden]; none if tied to the embedding
  std::vector<float> final_norm_;     // [hidden]
};

// ExportState of a loaded model. REQUIRES: `model` came from LoadModel.
std::vector<StateTensor> ExportState(const Model& model, const std::byte* state,
                                     std::span<std::byte* const> blocks, int64_t position);

}  // namespace cairn
