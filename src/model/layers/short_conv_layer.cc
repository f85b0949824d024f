#include "model/layers/short_conv_layer.h"

#include <algorithm>
#include <utility>

namespace cairn {

ShortConvLayer::ShortConvLayer(Options options, std::vector<float> conv, std::vector<float> bias,
                               Projection input, Projection output)
    : options_(options),
      conv_(std::move(conv)),
      bias_(std::move(bias)),
      input_(std::move(input)),
      output_(std::move(output)) {}

Result<ShortConvLayer> ShortConvLayer::Load(Weights& weights, const std::string& prefix,
                                            int64_t hidden, const Options& options) {
  const int64_t channels = options.shape.channels, taps = options.shape.kernel;
  const Projection::Part input[] = {{prefix + "shortconv.in_proj", 3 * channels}};
  const Projection::Part output[] = {{prefix + "shortconv.out_proj", hidden}};
  ASSIGN_OR_RETURN(const std::vector<float> rows,
                   weights.Floats(prefix + "shortconv.conv.weight", {channels, taps}));
  std::vector<float> conv(rows.size());
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t j = 0; j < taps; ++j) conv[j * channels + c] = rows[c * taps + j];
  }
  std::vector<float> bias;
  if (weights.Has(prefix + "shortconv.conv.bias")) {
    ASSIGN_OR_RETURN(bias, weights.Vector(prefix + "shortconv.conv.bias", channels));
  }
  ASSIGN_OR_RETURN(Projection in, Projection::Load(weights, input, hidden));
  ASSIGN_OR_RETURN(Projection out, Projection::Load(weights, output, channels));
  return ShortConvLayer(options, std::move(conv), std::move(bias), std::move(in), std::move(out));
}

void ShortConvLayer::AddNeeds(ScratchNeeds& needs) const {
  needs.projected = std::max(needs.projected, input_.n());
  needs.mixed = std::max(needs.mixed, output_.k());
  input_.ReadsNormed(needs);
  needs.matmul_k = std::max({needs.matmul_k, input_.k(), output_.k()});
}

void ShortConvLayer::Forward(const Step& step) const {
  ModelWorkspace& scratch = step.scratch;
  input_.Apply(step, scratch.normed, step.rows, scratch.projected, input_.n());
  ShortConv(step.ctx, options_.shape, step.RecurrentSlices(options_.conv_offset), scratch.projected,
            input_.n(), conv_, bias_, scratch.mixed, output_.k());
  output_.Apply(step, scratch.mixed, step.rows, scratch.branch, output_.n());
}

}  // namespace cairn
