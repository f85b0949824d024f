#include "model/layers/kda_layer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/vector_ops.h"

namespace cairn {
namespace {

// Under the root of the q and k norms; fixed by the architecture, not the norm epsilon of the file.
constexpr float kL2NormEps = 1e-6f;

}  // namespace

Conv1dShape KdaLayer::ConvShape(const GatedDeltaShape& shape, int conv_kernel) {
  return {.channels = 3 * shape.key_heads * shape.key_dim,
          .kernel = conv_kernel,
          .activation = ConvActivation::kSilu};
}

KdaLayer::KdaLayer(const Options& options)
    : options_(options),
      conv_shape_(ConvShape(options.shape, options.conv_kernel)),
      width_(int64_t{options.shape.key_heads} * options.shape.key_dim) {}

Status KdaLayer::LoadVectors(Weights& weights, const std::string& prefix) {
  const int64_t taps = options_.conv_kernel, d = options_.shape.key_dim;
  conv_.resize(static_cast<size_t>(taps * conv_shape_.channels));
  int64_t channel = 0;
  for (const char* part : {"q", "k", "v"}) {
    ASSIGN_OR_RETURN(const std::vector<float> conv,
                     weights.Floats(prefix + "ssm_conv1d_" + part + ".weight", {width_, taps}));
    for (int64_t c = 0; c < width_; ++c, ++channel) {
      for (int64_t j = 0; j < taps; ++j)
        conv_[j * conv_shape_.channels + channel] = conv[c * taps + j];
    }
  }
  ASSIGN_OR_RETURN(const std::vector<float> a_neg,
                   weights.Vector(prefix + "ssm_a", options_.shape.value_heads));
  for (const float a : a_neg) a_neg_.insert(a_neg_.end(), d, a);
  ASSIGN_OR_RETURN(dt_bias_, weights.Vector(prefix + "ssm_dt.bias", width_));
  ASSIGN_OR_RETURN(norm_, weights.Vector(prefix + "ssm_norm.weight", d));
  return {};
}

Result<KdaLayer> KdaLayer::Load(Weights& weights, const std::string& prefix, int64_t hidden,
                                const Options& options) {
  KdaLayer layer(options);
  const int64_t width = layer.width_, d = options.shape.key_dim;
  std::vector<Projection::Part> input = QkvParts(weights, prefix, width, width, width);
  input.push_back({prefix + "ssm_f_a", d});
  input.push_back({prefix + "ssm_g_a", d});
  input.push_back({prefix + "ssm_beta", options.shape.value_heads});
  const Projection::Part decay[] = {{prefix + "ssm_f_b", width}};
  const Projection::Part gate[] = {{prefix + "ssm_g_b", width}};
  const Projection::Part output[] = {{prefix + "attn_output", hidden}};
  RETURN_IF_ERROR(layer.LoadVectors(weights, prefix));
  ASSIGN_OR_RETURN(layer.input_, Projection::Load(weights, input, hidden));
  ASSIGN_OR_RETURN(layer.decay_, Projection::Load(weights, decay, d));
  ASSIGN_OR_RETURN(layer.gate_, Projection::Load(weights, gate, d));
  ASSIGN_OR_RETURN(layer.output_, Projection::Load(weights, output, width));
  return layer;
}

void KdaLayer::AddNeeds(ScratchNeeds& needs) const {
  needs.projected = std::max(needs.projected, input_.n());
  needs.staged = std::max(needs.staged, conv_shape_.channels + width_);
  needs.mixed = std::max(needs.mixed, width_);
  needs.gates = std::max(needs.gates, width_ + options_.shape.value_heads);
  input_.ReadsNormed(needs);
  needs.matmul_k = std::max({needs.matmul_k, input_.k(), output_.k()});
}

void KdaLayer::ApplyLowRank(const Step& step, const Projection& b, const float* low,
                            float* y) const {
  float* gathered = step.scratch.mixed;  // [rows, d]
  CopyHeads(step.ctx, low, input_.n(), b.k(), step.rows, 1, b.k(), gathered, b.k(), b.k());
  b.Apply(step, gathered, step.rows, y, width_);
}

void KdaLayer::Forward(const Step& step) const {
  const GatedDeltaShape& shape = options_.shape;
  ModelWorkspace& scratch = step.scratch;
  const int rows = step.rows, heads = shape.value_heads;
  const int64_t d = shape.key_dim, width = input_.n(), channels = conv_shape_.channels;
  const float* qkv = scratch.projected;  // [rows, channels], rows `width` apart, like the rest
  const float* f_low = qkv + channels;   // [rows, d]
  const float* z_low = f_low + d;
  const float* b = z_low + d;                        // [rows, heads]
  float* q = scratch.staged;                         // [rows, channels]: q, k, v
  float* wide = q + int64_t{rows} * channels;        // [rows, width_]: f, then z
  float* g = scratch.gates;                          // [rows, width_]
  float* beta = g + int64_t{rows} * shape.decays();  // [rows, heads]
  input_.Apply(step, scratch.normed, rows, scratch.projected, width);

  ApplyLowRank(step, decay_, f_low, wide);
  DeltaGates(step.ctx, wide, width_, b, width, a_neg_.data(), dt_bias_.data(), rows, shape.decays(),
             heads, g, beta);
  ApplyLowRank(step, gate_, z_low, wide);

  Conv1d(step.ctx, conv_shape_, step.RecurrentSlices(options_.conv_offset), qkv, width, conv_, {},
         q, channels);
  float* k = q + width_;
  const float* v = k + width_;
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(d)));
  L2NormHeads(step.ctx, q, channels, d, kL2NormEps, scale, rows, heads, d);
  L2NormHeads(step.ctx, k, channels, d, kL2NormEps, 1.0f, rows, heads, d);
  float* o = scratch.mixed;  // [rows, width_]
  GatedDelta(step.ctx, shape, step.RecurrentSlices(options_.delta_offset), q, k, channels, v,
             channels, g, beta, o, width_);

  RmsNormHeads(step.ctx, o, width_, d, norm_.data(), options_.norm_eps, rows, heads, d);
  SigmoidGateHeads(step.ctx, o, width_, d, wide, width_, d, rows, heads, d);
  output_.Apply(step, o, rows, scratch.branch, output_.n());
}

}  // namespace cairn
