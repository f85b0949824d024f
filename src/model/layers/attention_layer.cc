#include "model/layers/attention_layer.h"

#include <algorithm>
#include <utility>

#include "kernels/rope.h"
#include "kernels/row_ranges.h"
#include "kernels/vector_ops.h"
#include "model/layers/window_kv.h"

namespace cairn {
namespace {

int64_t QueryWidth(const AttentionShape& shape) { return int64_t{shape.heads} * shape.head_dim; }
int64_t KeyWidth(const AttentionShape& shape) { return int64_t{shape.kv_heads} * shape.head_dim; }
// Floats from one query head to the next in the projected row.
int64_t QueryStride(const AttentionLayer::Options& options) {
  return options.shape.head_dim * (options.gate == OutputGate::kSigmoid ? 2 : 1);
}

}  // namespace

AttentionLayer::AttentionLayer(Options options, HeadNorms norms, Projection input,
                               Projection output)
    : options_(options),
      norms_(std::move(norms)),
      input_(std::move(input)),
      output_(std::move(output)) {}

Result<AttentionLayer::HeadNorms> AttentionLayer::LoadHeadNorms(Weights& weights,
                                                                const std::string& prefix,
                                                                int64_t head_dim, float eps) {
  HeadNorms norms{.q = {}, .k = {}, .eps = eps};
  ASSIGN_OR_RETURN(norms.q, weights.Vector(prefix + "attn_q_norm.weight", head_dim));
  ASSIGN_OR_RETURN(norms.k, weights.Vector(prefix + "attn_k_norm.weight", head_dim));
  return norms;
}

Result<AttentionLayer> AttentionLayer::Load(Weights& weights, const std::string& prefix,
                                            int64_t hidden, const Options& options,
                                            HeadNorms norms) {
  const AttentionShape& shape = options.shape;
  const std::vector<Projection::Part> input = QkvParts(
      weights, prefix, shape.heads * QueryStride(options), KeyWidth(shape), KeyWidth(shape));
  const Projection::Part output[] = {{prefix + "attn_output", hidden}};
  ASSIGN_OR_RETURN(Projection in, Projection::Load(weights, input, hidden));
  ASSIGN_OR_RETURN(Projection out, Projection::Load(weights, output, QueryWidth(shape)));
  return AttentionLayer(options, std::move(norms), std::move(in), std::move(out));
}

void AttentionLayer::Scale(float query, float key, float value, float output) {
  const int64_t keys = KeyWidth(options_.shape);
  const Projection::ScaledPart in[] = {{input_.n() - 2 * keys, query}, {keys, key}, {keys, value}};
  const Projection::ScaledPart out[] = {{output_.n(), output}};
  input_.ScaleOutputs(in);
  output_.ScaleOutputs(out);
}

void AttentionLayer::AddNeeds(ScratchNeeds& needs) const {
  const int64_t q_width = QueryWidth(options_.shape);
  needs.projected = std::max(needs.projected, input_.n());
  if (options_.gate == OutputGate::kSigmoid) needs.staged = std::max(needs.staged, q_width);
  needs.mixed = std::max(needs.mixed, q_width);
  input_.ReadsNormed(needs);
  needs.matmul_k = std::max({needs.matmul_k, input_.k(), output_.k()});
  needs.attention = options_.shape;
}

void AttentionLayer::GrowQueries(const Step& step, float* q, int64_t ldq) const {
  const QueryGrowth& growth = options_.growth;
  const int64_t q_width = options_.shape.heads * QueryStride(options_);
  ForRowRanges(step.ctx, step.rows, q_width, [&](int begin, int end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t periods = step.scratch.positions[r] / growth.period;
      if (periods == 0) continue;
      const double turns = 1.0 + static_cast<double>(periods);
      const float factor = static_cast<float>(1.0 + growth.rate * LogDouble(turns));
      for (int64_t i = 0; i < q_width; ++i) q[r * ldq + i] *= factor;
    }
  });
}

void AttentionLayer::Forward(const Step& step) const {
  const AttentionShape& shape = options_.shape;
  const KernelContext& ctx = step.ctx;
  ModelWorkspace& scratch = step.scratch;
  const int rows = step.rows;
  const int64_t d = shape.head_dim, q_stride = QueryStride(options_), q_width = QueryWidth(shape);
  const int64_t width = input_.n();
  float* q = scratch.projected;  // [rows, heads, q_stride], rows `width` apart, like k and v
  float* k = q + shape.heads * q_stride;  // [rows, kv_heads, d]
  float* v = k + KeyWidth(shape);
  input_.Apply(step, scratch.normed, rows, scratch.projected, width);

  if (!norms_.q.empty()) {
    RmsNormHeads(ctx, q, width, q_stride, norms_.q.data(), norms_.eps, rows, shape.heads, d);
    RmsNormHeads(ctx, k, width, d, norms_.k.data(), norms_.eps, rows, shape.kv_heads, d);
  }
  if (options_.positions != Positions::kNone) {
    const bool local = options_.positions == Positions::kLocalRotary;
    const RopeTable& rope = local ? *step.local_rope : step.rope;
    const RopeAngles& angles = local ? step.local_angles : step.angles;
    ApplyRope(ctx, rope, angles, q, width, q_stride, rows, shape.heads);
    ApplyRope(ctx, rope, angles, k, width, d, rows, shape.kv_heads);
  }

  if (options_.growth.rate != 0) GrowQueries(step, q, width);

  const auto attend = [&](const float* query, int64_t ldq) {
    if (shape.window > 0) {
      AttendWindow(step, shape, options_.kv_offset, query, ldq, k, v, width, scratch.mixed,
                   q_width);
      return;
    }
    const auto slices = step.AttentionSlices(options_.kv_offset);
    StoreKv(ctx, shape, slices, k, width, v, width);
    Attend(ctx, shape, slices, query, ldq, scratch.mixed, q_width, scratch.attention);
  };
  if (options_.gate == OutputGate::kNone) {
    attend(q, width);
  } else {
    CopyHeads(ctx, q, width, q_stride, rows, shape.heads, d, scratch.staged, q_width, d);
    attend(scratch.staged, q_width);
    SigmoidGateHeads(ctx, scratch.mixed, q_width, d, /*gate=*/q + d, width, q_stride, rows,
                     shape.heads, d);
  }
  output_.Apply(step, scratch.mixed, rows, scratch.branch, output_.n());
}

}  // namespace cairn
