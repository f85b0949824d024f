// The Mamba2 mixer: a short convolution and a selective scan. Source: arXiv 2405.21060; the exact
// equations are those of the Mamba2, Granite 4.0, Falcon-H1 and Nemotron-H checkpoints.
//
//   z, xBC, dt = split(x W_in^T)
//   u, B, C = split(SiLU(conv(xBC) + bias))
//   dt = softplus(dt + dt_bias)
//   y = scan(u, B, C, dt) with decay exp(a_neg dt) and skip D          per head
//   out = (norm and gate of y with SiLU(z)) W_out^T
//
// Threads: immutable after Load.
#pragma once

#include <string>
#include <vector>

#include "kernels/gated_ops.h"
#include "model/layers/projection.h"
#include "model/layers/step.h"
#include "model/mamba2_config.h"

namespace cairn {

class Mamba2Layer {
 public:
  struct Options {
    Mamba2Config config;
    GateOrder gate = GateOrder::kGateThenNorm;
    float norm_eps = 0;
    size_t conv_offset = 0;  // of this layer's parts in a state buffer
    size_t ssm_offset = 0;
  };
  // Factors on the parts of the input projection and on the output (Falcon-H1).
  struct Scales {
    float z = 1, x = 1, b = 1, c = 1, dt = 1, out = 1;
  };
  // PREFIX ssm_in, ssm_conv1d with its bias if the file has one, ssm_dt.bias, ssm_a, ssm_d,
  // ssm_out, and ssm_norm [groups, inner / groups] unless the order is kNoNorm.
  static Result<Mamba2Layer> Load(Weights& weights, const std::string& prefix, int64_t hidden,
                                  const Options& options);

  void Scale(const Scales& scales);
  void AddNeeds(ScratchNeeds& needs) const;
  const Options& options() const { return options_; }

  // branch = mamba2(normed); the states of the slices move on by their rows.
  void Forward(const Step& step) const;

 private:
  struct Vectors {
    std::vector<float> conv;       // [K, channels], oldest tap first
    std::vector<float> conv_bias;  // [channels], or empty
    std::vector<float> dt_bias;    // [heads]
    std::vector<float> a_neg;      // [heads], -exp(A_log)
    std::vector<float> d;          // [heads]
    std::vector<float> norm;       // [inner], or empty
  };
  static Result<Vectors> LoadVectors(Weights& weights, const std::string& prefix,
                                     const Options& options);
  Mamba2Layer(Options options, Vectors vectors, Projection input, Projection output);

  Options options_;
  Vectors vectors_;
  Projection input_, output_;
  Conv1dShape conv_shape_;
  int64_t inner_;
};

}  // namespace cairn
