// Causal self-attention with rotary positions and grouped key-value heads; optionally with q/k
// norms and an output gate (Qwen3.5).
//
//   q, k, v = x W^T                    with a gate: q_h | gate_h for each head h
//   q, k = rope(norm(q)), rope(norm(k))
//   out = (attend(q, K, V) * sigmoid(gate)) W_out^T
//
// Threads: immutable after construction.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/attention.h"
#include "model/layers/projection.h"
#include "model/layers/step.h"

namespace cairn {

enum class OutputGate { kNone, kSigmoid };
enum class Positions {
  kRotary,
  kLocalRotary,  // by Step::local_rope
  kNone,         // "NoPE": the mask alone orders the keys
};

// Queries at position p are multiplied by 1 + rate log(1 + floor(p / period)) (Llama 4, Ministral
// 3).
struct QueryGrowth {
  float rate = 0;  // 0: none
  int64_t period = 1;
};

class AttentionLayer {
 public:
  struct Options {
    AttentionShape shape;
    OutputGate gate = OutputGate::kNone;
    size_t kv_offset = 0;  // of this layer in a block or, with a window, in the state
    Positions positions = Positions::kRotary;
    QueryGrowth growth = {};
  };
  // RMSNorm over each head of q and k before the rotation.
  struct HeadNorms {
    std::vector<float> q, k;  // [head_dim]; empty: no norm
    float eps = 0;
  };
  // PREFIX attn_q_norm, attn_k_norm [head_dim].
  static Result<HeadNorms> LoadHeadNorms(Weights& weights, const std::string& prefix,
                                         int64_t head_dim, float eps);

  // PREFIX attn_q (twice as wide with a gate), attn_k, attn_v, or the three as attn_qkv;
  // attn_output.
  static Result<AttentionLayer> Load(Weights& weights, const std::string& prefix, int64_t hidden,
                                     const Options& options, HeadNorms norms);

  // Factors on the projections (Falcon-H1); once at most.
  void Scale(float query, float key, float value, float output);
  void AddNeeds(ScratchNeeds& needs) const;
  size_t bytes() const { return input_.bytes() + output_.bytes(); }
  const Options& options() const { return options_; }

  // branch = attention(normed); writes the rows' keys and values into their blocks.
  void Forward(const Step& step) const;

 private:
  void GrowQueries(const Step& step, float* q, int64_t ldq) const;
  AttentionLayer(Options options, HeadNorms norms, Projection input, Projection output);

  Options options_;
  HeadNorms norms_;
  Projection input_, output_;
};

}  // namespace cairn
