#include "model/layers/projection.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "kernels/gated_ops.h"
#include "kernels/vector_ops.h"

namespace cairn {
namespace {

constexpr size_t kPiecesAtOnce = 8;

// How many of the first parts can be one stacked matrix.
size_t StackableCount(const Weights& weights, std::span<const Weights::Part> parts) {
  size_t count = 1;
  while (count < parts.size() && weights.CanStack(parts.first(count + 1))) ++count;
  return count;
}

}  // namespace

Result<Projection> Projection::Load(Weights& weights, std::span<const Part> parts, int64_t k) {
  Projection projection;
  projection.k_ = k;
  std::vector<Weights::Part> matrices;
  for (const Part& part : parts) {
    matrices.push_back({part.name + ".weight", part.n});
    projection.n_ += part.n;
  }
  int64_t column = 0;
  for (std::span<const Weights::Part> rest = matrices; !rest.empty();) {
    const Part& first = parts[parts.size() - rest.size()];
    const auto stack = rest.first(first.rows.empty() ? StackableCount(weights, rest) : 1);
    ASSIGN_OR_RETURN(PackedMatrix matrix, stack.size() == 1 ? weights.Matrix(first.name + ".weight",
                                                                             first.n, k, first.rows)
                                                            : weights.Stacked(stack, k));
    projection.quantized_ |= IsQuantized(matrix.type());
    const int64_t width = matrix.n();
    projection.pieces_.push_back({std::move(matrix), column});
    column += width;
    rest = rest.subspan(stack.size());
  }
  column = 0;
  for (const Part& part : parts) {
    ASSIGN_OR_RETURN(const auto bias, weights.OptionalVector(part.name + ".bias", part.n));
    if (bias.has_value()) {
      projection.bias_.resize(projection.n_, 0.0f);
      std::copy(bias->begin(), bias->end(), projection.bias_.begin() + column);
    }
    column += part.n;
  }
  return projection;
}

void Projection::ScaleOutputs(std::span<const ScaledPart> parts) {
  CHECK(scale_.empty());
  if (std::all_of(parts.begin(), parts.end(), [](const auto& part) { return part.scale == 1; }))
    return;
  for (const ScaledPart& part : parts) scale_.insert(scale_.end(), part.n, part.scale);
  CHECK(static_cast<int64_t>(scale_.size()) == n_);
}

size_t Projection::bytes() const {
  size_t total = (bias_.size() + scale_.size()) * sizeof(float);
  for (const Piece& piece : pieces_) total += piece.matrix.packed_bytes();
  return total;
}

void Projection::Apply(const Step& step, const float* x, int rows, float* y, int64_t ldy) const {
  Apply(step, Prepare(step, x, rows), y, ldy);
}

Activations Projection::Prepare(const Step& step, const float* x, int rows) const {
  const auto& normed = step.scratch.normed_int8;
  if (quantized_ && x == step.scratch.normed && normed.has_value()) return *normed;
  return quantized_ ? PrepareActivations(step.ctx, x, rows, k_, step.scratch.activations)
                    : FloatActivations(x, rows, k_);
}

void Projection::Apply(const Step& step, const Activations& input, float* y, int64_t ldy) const {
  std::array<MatMulOutput, kPiecesAtOnce> outputs;
  for (size_t begin = 0; begin < pieces_.size(); begin += kPiecesAtOnce) {
    const size_t count = std::min(kPiecesAtOnce, pieces_.size() - begin);
    for (size_t i = 0; i < count; ++i) {
      const Piece& piece = pieces_[begin + i];
      outputs[i] = {&piece.matrix, y + piece.column, ldy};
    }
    MatMulAll(step.ctx, input, {outputs.data(), count});
  }
  if (!bias_.empty()) AddBias(step.ctx, y, ldy, bias_.data(), input.rows, n_);
  if (!scale_.empty()) ScaleColumns(step.ctx, y, ldy, scale_.data(), input.rows, n_);
}

const PackedMatrix* Projection::QuantizedMatrix() const {
  const bool only = pieces_.size() == 1 && bias_.empty() && scale_.empty();
  return only && quantized_ ? &pieces_[0].matrix : nullptr;
}

std::vector<Projection::Part> QkvParts(const Weights& weights, const std::string& prefix, int64_t q,
                                       int64_t k, int64_t v) {
  if (weights.Has(prefix + "attn_qkv.weight")) return {{prefix + "attn_qkv", q + k + v}};
  return {{prefix + "attn_q", q}, {prefix + "attn_k", k}, {prefix + "attn_v", v}};
}

}  // namespace cairn
