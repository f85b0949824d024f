// The feed-forward block without a gate, W_down max(W_up x, 0)^2. Source: arXiv 2109.08668.
//
// Threads: immutable after Load.
#pragma once

#include <string>

#include "model/layers/projection.h"
#include "model/layers/step.h"

namespace cairn {

class Relu2Ffn {
 public:
  // PREFIX ffn_up [ffn, hidden] and ffn_down [hidden, ffn], each with the suffix.
  static Result<Relu2Ffn> Load(Weights& weights, const std::string& prefix, int64_t hidden,
                               int64_t ffn, const std::string& suffix = "");

  void AddNeeds(ScratchNeeds& needs) const;

  // branch = ffn(normed)
  void Forward(const Step& step) const;

 private:
  Relu2Ffn(Projection up, Projection down);
  Projection up_, down_;
};

}  // namespace cairn
