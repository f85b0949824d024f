// The feed-forward block W_down (SiLU(W_gate x) * W_up x), or with GELU. Source: arXiv 2002.05202.
//
// Threads: immutable after Load.
#pragma once

#include <string>

#include "kernels/matmul_glu.h"
#include "model/layers/projection.h"
#include "model/layers/step.h"

namespace cairn {

class SwiGluFfn {
 public:
  // PREFIX ffn_gate, ffn_up [ffn, hidden] and ffn_down [hidden, ffn], each with the suffix.
  static Result<SwiGluFfn> Load(Weights& weights, const std::string& prefix, int64_t hidden,
                                int64_t ffn, const std::string& suffix = "",
                                GluActivation activation = GluActivation::kSilu);

  // Factors on the gate, before its activation, and on the output (Falcon-H1); once at most.
  void Scale(float gate, float down);
  void AddNeeds(ScratchNeeds& needs) const;
  size_t bytes() const { return gate_up_.bytes() + down_.bytes(); }

  // branch = ffn(normed)
  void Forward(const Step& step) const;

 private:
  SwiGluFfn(Projection gate_up, Projection down, GluActivation activation);
  // The gate's and up's matrix if both are one and down reads nothing but the int8 form.
  const PackedMatrix* FusedGateUp() const;
  Projection gate_up_, down_;
  GluActivation activation_;
};

}  // namespace cairn
