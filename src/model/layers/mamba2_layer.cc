#include "model/layers/mamba2_layer.h"

#include <algorithm>
#include <utility>

namespace cairn {

Mamba2Layer::Mamba2Layer(Options options, Vectors vectors, Projection input, Projection output)
    : options_(options),
      vectors_(std::move(vectors)),
      input_(std::move(input)),
      output_(std::move(output)),
      conv_shape_(options.config.conv_shape()),
      inner_(options.config.shape.inner()) {}

Result<Mamba2Layer::Vectors> Mamba2Layer::LoadVectors(Weights& weights, const std::string& prefix,
                                                      const Options& options) {
  const SsdShape& shape = options.config.shape;
  const int64_t channels = options.config.conv_shape().channels;
  const int taps = options.config.conv_kernel;
  Vectors vectors;
  ASSIGN_OR_RETURN(const std::vector<float> conv,
                   weights.Floats(prefix + "ssm_conv1d.weight", {channels, taps}));
  vectors.conv.resize(conv.size());
  for (int64_t c = 0; c < channels; ++c) {
    for (int j = 0; j < taps; ++j) vectors.conv[j * channels + c] = conv[c * taps + j];
  }
  if (weights.Has(prefix + "ssm_conv1d.bias")) {
    ASSIGN_OR_RETURN(vectors.conv_bias, weights.Vector(prefix + "ssm_conv1d.bias", channels));
  }
  ASSIGN_OR_RETURN(vectors.dt_bias, weights.Vector(prefix + "ssm_dt.bias", shape.heads));
  ASSIGN_OR_RETURN(vectors.a_neg, weights.Vector(prefix + "ssm_a", shape.heads));
  ASSIGN_OR_RETURN(vectors.d, weights.Vector(prefix + "ssm_d", shape.heads));
  if (options.gate != GateOrder::kNoNorm) {
    ASSIGN_OR_RETURN(vectors.norm, weights.Floats(prefix + "ssm_norm.weight",
                                                  {shape.groups, shape.inner() / shape.groups}));
  }
  return vectors;
}

Result<Mamba2Layer> Mamba2Layer::Load(Weights& weights, const std::string& prefix, int64_t hidden,
                                      const Options& options) {
  const SsdShape& shape = options.config.shape;
  const int64_t width = shape.inner() + options.config.conv_shape().channels + shape.heads;
  const Projection::Part input[] = {{prefix + "ssm_in", width}};
  const Projection::Part output[] = {{prefix + "ssm_out", hidden}};
  ASSIGN_OR_RETURN(Vectors vectors, LoadVectors(weights, prefix, options));
  ASSIGN_OR_RETURN(Projection in, Projection::Load(weights, input, hidden));
  ASSIGN_OR_RETURN(Projection out, Projection::Load(weights, output, shape.inner()));
  return Mamba2Layer(options, std::move(vectors), std::move(in), std::move(out));
}

void Mamba2Layer::Scale(const Scales& scales) {
  const SsdShape& shape = options_.config.shape;
  const Projection::ScaledPart input[] = {{shape.inner(), scales.z},
                                          {shape.inner(), scales.x},
                                          {shape.group_states(), scales.b},
                                          {shape.group_states(), scales.c},
                                          {shape.heads, scales.dt}};
  const Projection::ScaledPart output[] = {{output_.n(), scales.out}};
  input_.ScaleOutputs(input);
  output_.ScaleOutputs(output);
}

void Mamba2Layer::AddNeeds(ScratchNeeds& needs) const {
  needs.projected = std::max(needs.projected, input_.n());
  needs.staged = std::max<int64_t>(needs.staged, conv_shape_.channels);
  needs.mixed = std::max(needs.mixed, inner_);
  needs.gates = std::max<int64_t>(needs.gates, 2 * options_.config.shape.heads);
  input_.ReadsNormed(needs);
  needs.matmul_k = std::max({needs.matmul_k, input_.k(), output_.k()});
}

void Mamba2Layer::Forward(const Step& step) const {
  const SsdShape& shape = options_.config.shape;
  ModelWorkspace& scratch = step.scratch;
  const int rows = step.rows;
  const int64_t width = input_.n(), channels = conv_shape_.channels;
  const float* z = scratch.projected;  // [rows, inner], rows `width` apart, like the rest
  const float* xbc = z + inner_;       // [rows, channels]
  const float* raw = xbc + channels;   // [rows, heads]
  input_.Apply(step, scratch.normed, rows, scratch.projected, width);

  Conv1d(step.ctx, conv_shape_, step.RecurrentSlices(options_.conv_offset), xbc, width,
         vectors_.conv, vectors_.conv_bias, scratch.staged, channels);
  const float* u = scratch.staged;  // [rows, inner], rows `channels` apart, like b and c
  const float* b = u + inner_;      // [rows, groups, states]
  const float* c = b + shape.group_states();

  float* dt = scratch.gates;  // [rows, heads]
  float* decay = dt + int64_t{rows} * shape.heads;
  SsdGates(step.ctx, raw, width, vectors_.dt_bias.data(), vectors_.a_neg.data(), rows, shape.heads,
           dt, decay, options_.config.step_limits);
  SsdScan(step.ctx, shape, step.RecurrentSlices(options_.ssm_offset), u, b, c, channels, dt, decay,
          vectors_.d.data(), scratch.mixed, inner_);

  GateRows(step.ctx, options_.gate,
           {.y = scratch.mixed,
            .ldy = inner_,
            .z = z,
            .ldz = width,
            .w = vectors_.norm.empty() ? nullptr : vectors_.norm.data(),
            .eps = options_.norm_eps,
            .rows = rows,
            .groups = shape.groups,
            .n = inner_ / shape.groups,
            .out = scratch.mixed,
            .ldout = inner_});
  output_.Apply(step, scratch.mixed, rows, scratch.branch, output_.n());
}

}  // namespace cairn
