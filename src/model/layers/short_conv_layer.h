// The short convolution block of LFM2. Source: arXiv 2511.23404.
//
//   B, C, u = x W_in^T
//   out = (C * conv(B * u)) W_out^T                 causal, depthwise, no activation
//
// Threads: immutable after Load.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/short_conv.h"
#include "model/layers/projection.h"
#include "model/layers/step.h"

namespace cairn {

class ShortConvLayer {
 public:
  struct Options {
    ShortConvShape shape;
    size_t conv_offset = 0;  // of this layer's part in a state buffer
  };
  // PREFIX shortconv.in_proj [3 channels, hidden], shortconv.conv [channels, K],
  // shortconv.out_proj [hidden, channels], each with a bias if the file has it.
  static Result<ShortConvLayer> Load(Weights& weights, const std::string& prefix, int64_t hidden,
                                     const Options& options);

  void AddNeeds(ScratchNeeds& needs) const;
  const Options& options() const { return options_; }

  // branch = short_conv(normed); the states of the slices move on by their rows.
  void Forward(const Step& step) const;

 private:
  ShortConvLayer(Options options, std::vector<float> conv, std::vector<float> bias,
                 Projection input, Projection output);

  Options options_;
  std::vector<float> conv_;  // [K, channels], oldest tap first
  std::vector<float> bias_;  // [channels], or empty
  Projection input_, output_;
};

}  // namespace cairn
