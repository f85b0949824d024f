#include "model/layers/gated_delta_layer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/vector_ops.h"

namespace cairn {
namespace {

// Under the root of the q and k norms; fixed by the architecture, not the norm epsilon of the file.
constexpr float kL2NormEps = 1e-6f;

// The rows of q, k, v and z where the file has them by key head: q, k, then v and z of its value
// heads (Qwen3-Next files of 2025; the same rows are ssm_in of the checkpoint).
std::vector<int64_t> RowsByKeyHead(const GatedDeltaShape& shape) {
  const int64_t key = shape.key_dim;
  const int64_t values = int64_t{shape.value_heads} / shape.key_heads * shape.value_dim;
  std::vector<int64_t> rows;
  for (const auto& [begin, count] :
       {std::pair{int64_t{0}, key}, {key, key}, {2 * key, values}, {2 * key + values, values}}) {
    for (int64_t h = 0; h < shape.key_heads; ++h) {
      for (int64_t i = 0; i < count; ++i) rows.push_back(h * 2 * (key + values) + begin + i);
    }
  }
  return rows;
}

}  // namespace

Conv1dShape GatedDeltaLayer::ConvShape(const GatedDeltaShape& shape, int conv_kernel) {
  return {.channels = 2 * shape.key_heads * shape.key_dim + shape.value_heads * shape.value_dim,
          .kernel = conv_kernel,
          .activation = ConvActivation::kSilu};
}

GatedDeltaLayer::GatedDeltaLayer(Options options, Vectors vectors, Projection input,
                                 Projection output)
    : options_(options),
      vectors_(std::move(vectors)),
      input_(std::move(input)),
      output_(std::move(output)),
      conv_shape_(ConvShape(options.shape, options.conv_kernel)),
      key_width_(int64_t{options.shape.key_heads} * options.shape.key_dim),
      value_width_(int64_t{options.shape.value_heads} * options.shape.value_dim) {}

Result<GatedDeltaLayer::Vectors> GatedDeltaLayer::LoadVectors(Weights& weights,
                                                              const std::string& prefix,
                                                              const Options& options) {
  const GatedDeltaShape& shape = options.shape;
  const int64_t channels = ConvShape(shape, options.conv_kernel).channels;
  const int taps = options.conv_kernel;
  Vectors vectors;
  ASSIGN_OR_RETURN(const std::vector<float> conv,
                   weights.Floats(prefix + "ssm_conv1d.weight", {channels, taps}));
  vectors.conv.resize(conv.size());
  for (int64_t c = 0; c < channels; ++c) {
    for (int j = 0; j < taps; ++j) vectors.conv[j * channels + c] = conv[c * taps + j];
  }
  ASSIGN_OR_RETURN(vectors.a_neg, weights.Vector(prefix + "ssm_a", shape.value_heads));
  ASSIGN_OR_RETURN(vectors.dt_bias, weights.Vector(prefix + "ssm_dt.bias", shape.value_heads));
  ASSIGN_OR_RETURN(vectors.norm, weights.Vector(prefix + "ssm_norm.weight", shape.value_dim));
  return vectors;
}

Result<GatedDeltaLayer> GatedDeltaLayer::Load(Weights& weights, const std::string& prefix,
                                              int64_t hidden, const Options& options) {
  const GatedDeltaShape& shape = options.shape;
  const int64_t value_width = int64_t{shape.value_heads} * shape.value_dim;
  const int64_t channels = ConvShape(shape, options.conv_kernel).channels;
  std::vector<Projection::Part> input;
  if (options.gate_rows == GateRows::kByKeyHead && weights.Has(prefix + "ssm_in.weight")) {
    input.push_back({prefix + "ssm_in", channels + value_width, RowsByKeyHead(shape)});
  } else {
    input.push_back({prefix + "attn_qkv", channels});
    input.push_back({prefix + "attn_gate", value_width});
  }
  if (options.gate_rows == GateRows::kApart) {
    input.push_back({prefix + "ssm_beta", shape.value_heads});
    input.push_back({prefix + "ssm_alpha", shape.value_heads});
  } else {
    input.push_back({prefix + "ssm_ba", 2 * shape.value_heads});
  }
  const Projection::Part output[] = {{prefix + "ssm_out", hidden}};
  ASSIGN_OR_RETURN(Vectors vectors, LoadVectors(weights, prefix, options));
  ASSIGN_OR_RETURN(Projection in, Projection::Load(weights, input, hidden));
  ASSIGN_OR_RETURN(Projection out, Projection::Load(weights, output, value_width));
  return GatedDeltaLayer(options, std::move(vectors), std::move(in), std::move(out));
}

void GatedDeltaLayer::AddNeeds(ScratchNeeds& needs) const {
  needs.projected = std::max(needs.projected, input_.n());
  needs.staged = std::max<int64_t>(needs.staged, conv_shape_.channels);
  needs.mixed = std::max(needs.mixed, value_width_);
  needs.gates = std::max<int64_t>(needs.gates, 4 * options_.shape.value_heads);
  input_.ReadsNormed(needs);
  needs.matmul_k = std::max({needs.matmul_k, input_.k(), output_.k()});
}

size_t GatedDeltaLayer::bytes() const {
  const size_t floats =
      vectors_.conv.size() + vectors_.a_neg.size() + vectors_.dt_bias.size() + vectors_.norm.size();
  return input_.bytes() + output_.bytes() + floats * sizeof(float);
}

void GatedDeltaLayer::Forward(const Step& step) const {
  const GatedDeltaShape& shape = options_.shape;
  ModelWorkspace& scratch = step.scratch;
  const int rows = step.rows;
  const int64_t width = input_.n(), channels = conv_shape_.channels;
  const float* qkv = scratch.projected;  // [rows, channels], rows `width` apart, like the rest
  const float* z = qkv + channels;       // [rows, value_heads, value_dim]
  const float* b = z + value_width_;     // [rows, value_heads]
  const float* a = b + shape.value_heads;
  input_.Apply(step, scratch.normed, rows, scratch.projected, width);

  Conv1d(step.ctx, conv_shape_, step.RecurrentSlices(options_.conv_offset), qkv, width,
         vectors_.conv, {}, scratch.staged, channels);
  float* q = scratch.staged;  // [rows, key_heads, key_dim], rows `channels` apart, like k and v
  float* k = q + key_width_;
  float* v = k + key_width_;
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.key_dim)));
  L2NormHeads(step.ctx, q, channels, shape.key_dim, kL2NormEps, scale, rows, shape.key_heads,
              shape.key_dim);
  L2NormHeads(step.ctx, k, channels, shape.key_dim, kL2NormEps, 1.0f, rows, shape.key_heads,
              shape.key_dim);

  float* g = scratch.gates;  // [rows, value_heads]
  float* beta = g + int64_t{rows} * shape.value_heads;
  int64_t gates_width = width;
  if (options_.gate_rows == GateRows::kByKeyHead) {
    // Of each key head r values b, then r values a; the kernel wants all b, all a.
    const int64_t r = shape.value_heads / shape.key_heads;
    float* apart = beta + int64_t{rows} * shape.value_heads;  // [rows, 2, value_heads]
    gates_width = 2 * shape.value_heads;
    CopyHeads(step.ctx, b, width, 2 * r, rows, shape.key_heads, r, apart, gates_width, r);
    CopyHeads(step.ctx, b + r, width, 2 * r, rows, shape.key_heads, r, apart + shape.value_heads,
              gates_width, r);
    b = apart;
    a = apart + shape.value_heads;
  }
  DeltaGates(step.ctx, a, gates_width, b, gates_width, vectors_.a_neg.data(),
             vectors_.dt_bias.data(), rows, shape.decays(), shape.value_heads, g, beta);
  GatedDelta(step.ctx, shape, step.RecurrentSlices(options_.delta_offset), q, k, channels, v,
             channels, g, beta, scratch.mixed, value_width_);

  float* gated = scratch.staged;  // [rows, value_width]; q, k and v are spent
  GatedRmsNormHeads(step.ctx, scratch.mixed, value_width_, z, width, vectors_.norm.data(),
                    options_.norm_eps, rows, shape.value_heads, shape.value_dim, gated,
                    value_width_);
  output_.Apply(step, gated, rows, scratch.branch, output_.n());
}

}  // namespace cairn
