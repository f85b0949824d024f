#include "model/decoder_model.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "kernels/gated_ops.h"
#include "kernels/moe_ops.h"
#include "kernels/norm_activations.h"
#include "kernels/vector_ops.h"
#include "model/numerics.h"

namespace cairn {

static_assert(kBlockTokens == kBlockPositions);
namespace {

// Collects what a fingerprint covers; every field has a fixed width or its length before it.
class Digest {
 public:
  void Add(uint64_t value) {
    for (int i = 0; i < 8; ++i) bytes_.push_back(static_cast<char>(value >> (8 * i)));
  }
  void Add(double value) { Add(std::bit_cast<uint64_t>(value)); }
  void Add(std::string_view text) {
    Add(uint64_t{text.size()});
    bytes_ += text;
  }
  uint64_t Value() const { return XXH3_64bits(bytes_.data(), bytes_.size()); }

 private:
  std::string bytes_;
};

void AddLayout(Digest& digest, const StateLayout& layout) {
  for (const StatePart& part : layout.parts()) {
    digest.Add(uint64_t(part.layer));
    digest.Add(uint64_t(part.kind.index()));
    if (const auto* full = std::get_if<FullKv>(&part.kind)) {
      digest.Add(uint64_t{full->bytes_per_token});
    } else if (const auto* window = std::get_if<WindowKv>(&part.kind)) {
      digest.Add(uint64_t(window->window));
      digest.Add(uint64_t{window->bytes_per_token});
    } else if (const auto* recurrent = std::get_if<Recurrent>(&part.kind)) {
      digest.Add(uint64_t{recurrent->bytes});
    } else {
      digest.Add(uint64_t{std::get<Conv>(part.kind).bytes});
    }
  }
  digest.Add(uint64_t{layout.hidden_bytes()});
}

void AddRope(Digest& digest, const RopeTable& rope) {
  digest.Add(uint64_t(rope.pairs));
  digest.Add(uint64_t(rope.rotary_dims));
  for (const double frequency : rope.inv_freq) digest.Add(frequency);
  digest.Add(static_cast<double>(rope.magnitude));
}

}  // namespace

DecoderModel::DecoderModel(DecoderConfig config, StateLayout layout, RopeTable rope, KvType kv_type)
    : config_(std::move(config)),
      attention_shape_(config_.attention_shape(kv_type)),
      layout_(std::move(layout)),
      rope_(std::move(rope)) {
  needs_.hidden = config_.hidden_size;
  needs_.matmul_k = config_.hidden_size;
  needs_.rope_half = rope_.half();
}

void DecoderModel::SetLocalRope(RopeTable rope) {
  local_rope_ = std::move(rope);
  needs_.local_rope_half = local_rope_->half();
}

Status DecoderModel::LoadFrame(Weights& weights, std::string_view final_norm) {
  ASSIGN_OR_RETURN(embedding_,
                   weights.Matrix("token_embd.weight", config_.vocab_size, config_.hidden_size));
  if (!config_.tied) {
    ASSIGN_OR_RETURN(head_,
                     weights.Matrix("output.weight", config_.vocab_size, config_.hidden_size));
  }
  ASSIGN_OR_RETURN(final_norm_, weights.Vector(final_norm, config_.hidden_size));
  return {};
}

void DecoderModel::FinishLoad(const ModelFile& file, const Weights& weights,
                              const LoadOptions& options) {
  info_.name = config_.name;
  info_.architecture = config_.architecture;
  info_.quantization = weights.quantization();
  info_.vocab_size = config_.vocab_size;
  info_.hidden_size = config_.hidden_size;
  info_.layer_count = config_.layer_count;
  info_.trained_context_length = config_.trained_context_length;
  info_.context_length = ContextInForce(config_, options);
  info_.parameter_count = weights.parameter_count();
  info_.weight_bytes = weights.resident_bytes();
  // Of an untied embedding one row is read, of experts those of the token, of everything else all.
  info_.bytes_per_decode_token = info_.weight_bytes - needs_.idle_expert_bytes -
                                 (head_.has_value() ? embedding_.packed_bytes() : 0);
  info_.fingerprint = Fingerprint(file, weights);
}

uint64_t DecoderModel::Fingerprint(const ModelFile& file, const Weights& weights) const {
  Digest digest;
  digest.Add(uint64_t{kNumericsVersion});
  digest.Add(weights.Hash());
  // Hyperparameters that are not tensors: norm epsilons, head counts, intervals.
  const std::string prefix = config_.architecture + ".";
  for (const ModelFile::Entry& entry : file.entries()) {
    if (!entry.key.starts_with(prefix)) continue;
    digest.Add(entry.key);
    digest.Add(
        std::string_view(reinterpret_cast<const char*>(entry.bytes.data()), entry.bytes.size()));
  }
  AddLayout(digest, layout_);
  digest.Add(uint64_t(attention_shape_.kv_type));
  AddRope(digest, rope_);
  if (local_rope_.has_value()) AddRope(digest, *local_rope_);
  return digest.Value();
}

std::unique_ptr<Workspace> DecoderModel::CreateWorkspace(int rows_max, int logit_rows_max,
                                                         int threads) const {
  return std::make_unique<ModelWorkspace>(needs_, rows_max, logit_rows_max, threads,
                                          info_.context_length);
}

Step DecoderModel::Begin(const KernelContext& ctx, const ForwardBatch& batch,
                         Workspace& workspace) const {
  auto& scratch = static_cast<ModelWorkspace&>(workspace);
  const int rows = static_cast<int>(batch.tokens.size());
  CHECK(rows >= 1 && rows <= scratch.rows_max);
  CHECK(static_cast<int>(batch.logit_rows.size()) <= scratch.logit_rows_max);
  const int64_t width = config_.hidden_size;
  ctx.pool->ParallelFor(rows, [&](int row, int) {
    embedding_.DequantizeRow(batch.tokens[row], {scratch.hidden + row * width, size_t(width)});
  });
  if (config_.embedding_scale != 1)
    ScaleRows(ctx, scratch.hidden, config_.embedding_scale, rows, width);
  int next_row = 0;
  for (const ForwardSlice& slice : batch.slices) {
    CHECK(slice.row_begin == next_row && slice.row_count >= 1);
    next_row += slice.row_count;
    CHECK(next_row <= rows && slice.position + slice.row_count <= info_.context_length);
    for (int i = 0; i < slice.row_count; ++i) {
      scratch.positions[slice.row_begin + i] = slice.position + i;
    }
  }
  CHECK(next_row == rows);
  const RopeAngles angles = ComputeRopeAngles(ctx, rope_, {scratch.positions, size_t(rows)},
                                              scratch.rope_cos, scratch.rope_sin);
  const RopeTable* local_rope = local_rope_.has_value() ? &*local_rope_ : nullptr;
  const RopeAngles local_angles =
      local_rope == nullptr ? RopeAngles{}
                            : ComputeRopeAngles(ctx, *local_rope, {scratch.positions, size_t(rows)},
                                                scratch.local_cos, scratch.local_sin);
  return {ctx, rows, batch.slices, rope_, angles, local_rope, local_angles, scratch};
}

void DecoderModel::Norm(const Step& step, const std::vector<float>& weight) const {
  ModelWorkspace& scratch = step.scratch;
  const float eps = config_.norm_eps;
  scratch.normed_int8.reset();
  if (needs_.int8_normed) {
    scratch.normed_int8 =
        NormActivations(step.ctx, scratch.hidden, weight.data(), eps, step.rows,
                        config_.hidden_size, scratch.normed, scratch.normed_space);
  } else {
    RmsNormRows(step.ctx, scratch.hidden, weight.data(), eps, step.rows, config_.hidden_size,
                scratch.normed);
  }
}

void DecoderModel::AddBranch(const Step& step) const {
  const int64_t count = int64_t{step.rows} * config_.hidden_size;
  float* hidden = step.scratch.hidden;
  if (config_.residual_scale == 1) {
    AddRows(step.ctx, hidden, step.scratch.branch, count);
  } else {
    AddScaledRows(step.ctx, hidden, step.scratch.branch, config_.residual_scale, count);
  }
}

void DecoderModel::Finish(const Step& step, const ForwardBatch& batch) const {
  ModelWorkspace& scratch = step.scratch;
  const int64_t width = config_.hidden_size;
  const size_t row_bytes = width * sizeof(float);
  RmsNormRows(step.ctx, scratch.hidden, final_norm_.data(), config_.norm_eps, step.rows, width,
              scratch.normed);
  const auto keep_hidden = [&](int row, std::byte* state) {
    std::memcpy(state + layout_.hidden_offset(), scratch.normed + row * width, row_bytes);
  };
  for (const ForwardSlice& slice : batch.slices) {
    for (const ForwardTap& tap : slice.taps) keep_hidden(slice.row_begin + tap.row, tap.state);
    keep_hidden(slice.row_begin + slice.row_count - 1, slice.state);
  }
  const int logit_rows = static_cast<int>(batch.logit_rows.size());
  for (int i = 0; i < logit_rows; ++i) {
    std::memcpy(scratch.head_rows + i * width, scratch.normed + batch.logit_rows[i] * width,
                row_bytes);
  }
  ApplyHead(step.ctx, logit_rows, batch.logits, scratch);
}

void DecoderModel::Logits(const KernelContext& ctx, std::span<const float* const> hidden_rows,
                          float* logits, Workspace& workspace) const {
  auto& scratch = static_cast<ModelWorkspace&>(workspace);
  const int64_t width = config_.hidden_size;
  CHECK(hidden_rows.empty() || scratch.logit_rows_max >= 1);
  while (!hidden_rows.empty()) {
    const int rows = std::min<int>(hidden_rows.size(), scratch.logit_rows_max);
    for (int i = 0; i < rows; ++i) {
      std::memcpy(scratch.head_rows + i * width, hidden_rows[i], width * sizeof(float));
    }
    ApplyHead(ctx, rows, logits, scratch);
    logits += int64_t{rows} * config_.vocab_size;
    hidden_rows = hidden_rows.subspan(rows);
  }
}

void DecoderModel::ApplyHead(const KernelContext& ctx, int rows, float* logits,
                             ModelWorkspace& scratch) const {
  if (rows == 0) return;
  const int64_t k = config_.hidden_size;
  const Activations input =
      IsQuantized(head().type())
          ? PrepareActivations(ctx, scratch.head_rows, rows, k, scratch.activations)
          : FloatActivations(scratch.head_rows, rows, k);
  MatMul(ctx, input, head(), logits, config_.vocab_size);
  if (config_.logit_scale != 1)
    ScaleRows(ctx, logits, config_.logit_scale, rows, config_.vocab_size);
}

std::vector<StateTensor> ExportState(const Model& model, const std::byte* state,
                                     std::span<std::byte* const> blocks, int64_t position) {
  const auto* decoder = dynamic_cast<const DecoderModel*>(&model);
  CHECK(decoder != nullptr);
  return decoder->ExportState(state, blocks, position);
}

}  // namespace cairn
