// Latent attention (MLA) without positions. Source: arXiv 2405.04434, in the form of the Kimi
// Linear checkpoints.
//
//   q = x W_q^T, per head q_own | q_shared;  latent | shared = x W_kva^T;  latent = RMSNorm(latent)
//   score = q_own . (W_kb latent) + q_shared . shared;  value = W_vb latent
//
// computed so that a token's keys and values of all heads are the one row latent | shared:
//   q' = W_kb^T q_own | q_shared;  o' = attend(q', rows, rows);  o = W_vb o'[latent]
//
// The store keeps the row twice, as key and as value: the attention kernel wants them of one size
// and in different orders. A value has zeros in the shared channels, which nobody reads, so that
// they do not widen the scale of an int8 row.
//
// Threads: immutable after Load.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/attention.h"
#include "model/kimi_linear_config.h"
#include "model/layers/projection.h"
#include "model/layers/step.h"

namespace cairn {

class LatentAttentionLayer {
 public:
  struct Options {
    AttentionShape shape;  // one KV head of sizes.row() channels
    LatentAttentionSizes sizes;
    float norm_eps = 0;
    size_t kv_offset = 0;  // of this layer in a block
  };
  // PREFIX attn_q [heads * query, hidden], attn_kv_a_mqa [row, hidden], attn_kv_a_norm [latent],
  // attn_k_b [heads, latent, head_key], attn_v_b [heads, head_value, latent], attn_output.
  static Result<LatentAttentionLayer> Load(Weights& weights, const std::string& prefix,
                                           int64_t hidden, const Options& options);

  void AddNeeds(ScratchNeeds& needs) const;
  const Options& options() const { return options_; }

  // branch = attention(normed); writes the rows' latents into their blocks.
  void Forward(const Step& step) const;

 private:
  explicit LatentAttentionLayer(const Options& options) : options_(options) {}
  // y [heads, rows, n] = each head's w times its rows of x [heads, rows, k].
  void ApplyHeads(const Step& step, const std::vector<PackedMatrix>& w, const float* x,
                  float* y) const;

  Options options_;
  std::vector<float> norm_;              // [latent]
  std::vector<PackedMatrix> k_b_, v_b_;  // of each head
  Projection input_, output_;            // input: q | latent | shared
};

}  // namespace cairn
