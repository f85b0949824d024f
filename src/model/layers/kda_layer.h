// Kimi Delta Attention: a gated delta-rule memory per head whose decay differs by key channel.
// Source: arXiv 2510.26692; the exact equations are those of the Kimi Linear checkpoints.
//
//   q, k, v, f, z, b = x W^T                     f, z of low rank: W_b (W_a x)
//   q, k, v = SiLU(conv(q | k | v));  q = l2norm(q) / sqrt(d);  k = l2norm(k)
//   g = exp(a_neg * softplus(f + dt_bias));  beta = sigmoid(b)      g by head and key channel
//   o = delta_rule(q, k, v, g, beta)
//   out = (RMSNorm(o) * sigmoid(z)) W_out^T                         norm first, then gate
//
// Threads: immutable after Load.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/conv1d.h"
#include "kernels/gated_delta.h"
#include "model/layers/projection.h"
#include "model/layers/step.h"

namespace cairn {

class KdaLayer {
 public:
  struct Options {
    GatedDeltaShape shape;  // one key head a value head, decays per key channel
    int conv_kernel = 0;
    float norm_eps = 0;
    size_t conv_offset = 0;  // of this layer's parts in a state buffer
    size_t delta_offset = 0;
  };
  // PREFIX attn_q, attn_k, attn_v (QkvParts), ssm_f_a, ssm_f_b, ssm_g_a, ssm_g_b, ssm_beta,
  // ssm_conv1d_q, ssm_conv1d_k, ssm_conv1d_v, ssm_a [heads], ssm_dt.bias [heads * d], ssm_norm,
  // attn_output.
  static Result<KdaLayer> Load(Weights& weights, const std::string& prefix, int64_t hidden,
                               const Options& options);

  static Conv1dShape ConvShape(const GatedDeltaShape& shape, int conv_kernel);  // q | k | v

  void AddNeeds(ScratchNeeds& needs) const;
  const Options& options() const { return options_; }

  // branch = kda(normed); the states of the slices move on by their rows.
  void Forward(const Step& step) const;

 private:
  KdaLayer(const Options& options);
  Status LoadVectors(Weights& weights, const std::string& prefix);
  // y [rows, width] = W_b (W_a x), of which `low` [rows, d] at the input's stride is W_a x.
  void ApplyLowRank(const Step& step, const Projection& b, const float* low, float* y) const;

  Options options_;
  Conv1dShape conv_shape_;
  int64_t width_;               // of q, of k, of v
  std::vector<float> conv_;     // [K, channels], oldest tap first
  std::vector<float> a_neg_;    // [width], -exp(A_log) of the head
  std::vector<float> dt_bias_;  // [width]
  std::vector<float> norm_;     // [d]
  Projection input_;            // q | k | v | W_fa x | W_ga x | b
  Projection decay_, gate_, output_;
};

}  // namespace cairn
