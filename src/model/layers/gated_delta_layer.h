// Gated DeltaNet: a short convolution and a gated delta-rule memory per value head. Source: arXiv
// 2412.06464; the exact equations are those of the Qwen3.5 checkpoints.
//
//   qkv, z, b, a = x W^T
//   q, k, v = SiLU(conv(qkv));  q = l2norm(q) / sqrt(dk);  k = l2norm(k)
//   g = exp(a_neg * softplus(a + dt_bias));  beta = sigmoid(b)
//   o = delta_rule(q, k, v, g, beta)
//   out = (RMSNorm(o) * SiLU(z)) W_out^T                       norm first, then gate
//
// Threads: immutable after Load.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/conv1d.h"
#include "kernels/gated_delta.h"
#include "model/layers/projection.h"
#include "model/layers/step.h"

namespace cairn {

// How the file keeps the projections of beta and of the decay.
enum class GateRows {
  kApart,      // ssm_beta, ssm_alpha: [value_heads, hidden] each
  kByKeyHead,  // ssm_ba: for each key head its value heads' beta, then their decay (Qwen3-Next)
};

class GatedDeltaLayer {
 public:
  struct Options {
    GatedDeltaShape shape;
    int conv_kernel = 0;
    float norm_eps = 0;
    GateRows gate_rows = GateRows::kApart;
    size_t conv_offset = 0;  // of this layer's parts in a state buffer
    size_t delta_offset = 0;
  };
  // PREFIX attn_qkv and attn_gate (or, with ssm_ba, both as ssm_in by key head), ssm_beta and
  // ssm_alpha or ssm_ba, ssm_conv1d, ssm_a, ssm_dt, ssm_norm, ssm_out.
  static Result<GatedDeltaLayer> Load(Weights& weights, const std::string& prefix, int64_t hidden,
                                      const Options& options);

  static Conv1dShape ConvShape(const GatedDeltaShape& shape, int conv_kernel);

  void AddNeeds(ScratchNeeds& needs) const;
  size_t bytes() const;
  const Options& options() const { return options_; }

  // branch = gated_delta_net(normed); the states of the slices move on by their rows.
  void Forward(const Step& step) const;

 private:
  struct Vectors {
    std::vector<float> conv;     // [K, channels], oldest tap first
    std::vector<float> a_neg;    // [value_heads], -exp(A_log)
    std::vector<float> dt_bias;  // [value_heads]
    std::vector<float> norm;     // [value_dim]
  };
  static Result<Vectors> LoadVectors(Weights& weights, const std::string& prefix,
                                     const Options& options);
  GatedDeltaLayer(Options options, Vectors vectors, Projection input, Projection output);

  Options options_;
  Vectors vectors_;
  Projection input_, output_;
  Conv1dShape conv_shape_;
  int64_t key_width_, value_width_;
};

}  // namespace cairn
