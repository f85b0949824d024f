#include "model/layers/latent_attention_layer.h"

#include <algorithm>
#include <cstring>

#include "kernels/matmul_grouped.h"
#include "kernels/vector_ops.h"

namespace cairn {

Result<LatentAttentionLayer> LatentAttentionLayer::Load(Weights& weights, const std::string& prefix,
                                                        int64_t hidden, const Options& options) {
  LatentAttentionLayer layer(options);
  const LatentAttentionSizes& s = options.sizes;
  const int heads = options.shape.heads;
  const Projection::Part input[] = {{prefix + "attn_q", int64_t{heads} * s.query()},
                                    {prefix + "attn_kv_a_mqa", s.row()}};
  const Projection::Part output[] = {{prefix + "attn_output", hidden}};
  const Weights::Part k_b[] = {{prefix + "attn_k_b.weight", s.latent}};
  const Weights::Part v_b[] = {{prefix + "attn_v_b.weight", s.head_value}};
  ASSIGN_OR_RETURN(layer.norm_, weights.Vector(prefix + "attn_kv_a_norm.weight", s.latent));
  ASSIGN_OR_RETURN(layer.input_, Projection::Load(weights, input, hidden));
  ASSIGN_OR_RETURN(layer.k_b_, weights.Experts(k_b, heads, s.head_key));
  ASSIGN_OR_RETURN(layer.v_b_, weights.Experts(v_b, heads, s.latent));
  ASSIGN_OR_RETURN(layer.output_, Projection::Load(weights, output, int64_t{heads} * s.head_value));
  return layer;
}

void LatentAttentionLayer::AddNeeds(ScratchNeeds& needs) const {
  const LatentAttentionSizes& s = options_.sizes;
  const int64_t heads = options_.shape.heads;
  const int64_t widest = std::max({s.row(), s.head_key, s.head_value});
  needs.projected = std::max(needs.projected, input_.n());
  needs.staged = std::max(needs.staged, heads * widest);
  needs.mixed = std::max(needs.mixed, heads * widest);
  needs.routed = std::max(needs.routed, heads * s.latent);
  // The activations of ApplyHeads: a row of each head.
  input_.ReadsNormed(needs);
  needs.matmul_k =
      std::max({needs.matmul_k, input_.k(), output_.k(), heads * std::max(s.head_key, s.latent)});
  needs.experts = std::max(needs.experts, options_.shape.heads);  // its groups
  needs.attention = options_.shape;
}

void LatentAttentionLayer::ApplyHeads(const Step& step, const std::vector<PackedMatrix>& w,
                                      const float* x, float* y) const {
  const int heads = options_.shape.heads, all = heads * step.rows;
  const int64_t k = w[0].k();
  MatMulGroup* groups = step.scratch.experts.matmuls;
  for (int h = 0; h < heads; ++h) groups[h] = {&w[h], h * step.rows, step.rows};
  const Activations input = IsQuantized(w[0].type())
                                ? PrepareActivations(step.ctx, x, all, k, step.scratch.activations)
                                : FloatActivations(x, all, k);
  GroupedMatMul(step.ctx, input, {groups, static_cast<size_t>(heads)}, y, w[0].n());
}

void LatentAttentionLayer::Forward(const Step& step) const {
  const LatentAttentionSizes& s = options_.sizes;
  const AttentionShape& shape = options_.shape;
  const KernelContext& ctx = step.ctx;
  ModelWorkspace& scratch = step.scratch;
  const int rows = step.rows, heads = shape.heads;
  const int64_t width = input_.n(), row = s.row(), query_width = heads * row;
  const float* q = scratch.projected;  // [rows, heads, query], rows `width` apart, like kv
  float* kv = scratch.projected + int64_t{heads} * s.query();  // [rows, row]
  input_.Apply(step, scratch.normed, rows, scratch.projected, width);
  RmsNormHeads(ctx, kv, width, row, norm_.data(), options_.norm_eps, rows, 1, s.latent);

  // Copies between [rows, heads, n] and [heads, rows, n].
  float* own = scratch.mixed;        // [heads, rows, head_key]
  float* absorbed = scratch.routed;  // [heads, rows, latent]
  float* query = scratch.staged;     // [rows, heads, row]
  CopyHeads(ctx, q, width, s.query(), rows, heads, s.head_key, own, s.head_key,
            int64_t{rows} * s.head_key);
  ApplyHeads(step, k_b_, own, absorbed);
  CopyHeads(ctx, absorbed, s.latent, int64_t{rows} * s.latent, rows, heads, s.latent, query,
            query_width, row);
  CopyHeads(ctx, q + s.head_key, width, s.query(), rows, heads, s.shared, query + s.latent,
            query_width, row);

  const auto slices = step.AttentionSlices(options_.kv_offset);
  float* attended = scratch.mixed;  // [rows, heads, row]
  float* value = scratch.mixed;     // [rows, row]: the latent, then zeros
  std::memset(value, 0, static_cast<size_t>(rows) * row * sizeof(float));
  CopyHeads(ctx, kv, width, row, rows, 1, s.latent, value, row, row);
  StoreKv(ctx, shape, slices, kv, width, value, row);
  Attend(ctx, shape, slices, query, query_width, attended, query_width, scratch.attention);

  float* latents = scratch.routed;  // [heads, rows, latent]
  float* values = scratch.staged;   // [heads, rows, head_value]
  float* out = scratch.mixed;       // [rows, heads, head_value]
  CopyHeads(ctx, attended, query_width, row, rows, heads, s.latent, latents, s.latent,
            int64_t{rows} * s.latent);
  ApplyHeads(step, v_b_, latents, values);
  CopyHeads(ctx, values, s.head_value, int64_t{rows} * s.head_value, rows, heads, s.head_value, out,
            int64_t{heads} * s.head_value, s.head_value);
  output_.Apply(step, out, rows, scratch.branch, output_.n());
}

}  // namespace cairn
