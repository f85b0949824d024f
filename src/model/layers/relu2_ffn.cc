#include "model/layers/relu2_ffn.h"

#include <algorithm>
#include <utility>

#include "kernels/gated_ops.h"

namespace cairn {

Relu2Ffn::Relu2Ffn(Projection up, Projection down) : up_(std::move(up)), down_(std::move(down)) {}

Result<Relu2Ffn> Relu2Ffn::Load(Weights& weights, const std::string& prefix, int64_t hidden,
                                int64_t ffn, const std::string& suffix) {
  const Projection::Part up[] = {{prefix + "ffn_up" + suffix, ffn}};
  const Projection::Part down[] = {{prefix + "ffn_down" + suffix, hidden}};
  ASSIGN_OR_RETURN(Projection in, Projection::Load(weights, up, hidden));
  ASSIGN_OR_RETURN(Projection out, Projection::Load(weights, down, ffn));
  return Relu2Ffn(std::move(in), std::move(out));
}

void Relu2Ffn::AddNeeds(ScratchNeeds& needs) const {
  needs.mixed = std::max(needs.mixed, up_.n());
  up_.ReadsNormed(needs);
  needs.matmul_k = std::max({needs.matmul_k, up_.k(), down_.k()});
}

void Relu2Ffn::Forward(const Step& step) const {
  ModelWorkspace& scratch = step.scratch;
  up_.Apply(step, scratch.normed, step.rows, scratch.mixed, up_.n());
  ReluSquareRows(step.ctx, scratch.mixed, step.rows, up_.n());
  down_.Apply(step, scratch.mixed, step.rows, scratch.branch, down_.n());
}

}  // namespace cairn
