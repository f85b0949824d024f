#include "model/layers/swiglu_ffn.h"

#include <algorithm>
#include <utility>

#include "kernels/moe_ops.h"
#include "kernels/vector_ops.h"

namespace cairn {

SwiGluFfn::SwiGluFfn(Projection gate_up, Projection down, GluActivation activation)
    : gate_up_(std::move(gate_up)), down_(std::move(down)), activation_(activation) {}

Result<SwiGluFfn> SwiGluFfn::Load(Weights& weights, const std::string& prefix, int64_t hidden,
                                  int64_t ffn, const std::string& suffix,
                                  GluActivation activation) {
  const Projection::Part gate_up[] = {{prefix + "ffn_gate" + suffix, ffn},
                                      {prefix + "ffn_up" + suffix, ffn}};
  const Projection::Part down[] = {{prefix + "ffn_down" + suffix, hidden}};
  ASSIGN_OR_RETURN(Projection in, Projection::Load(weights, gate_up, hidden));
  ASSIGN_OR_RETURN(Projection out, Projection::Load(weights, down, ffn));
  return SwiGluFfn(std::move(in), std::move(out), activation);
}

void SwiGluFfn::Scale(float gate, float down) {
  const Projection::ScaledPart in[] = {{down_.k(), gate}, {down_.k(), 1}};
  const Projection::ScaledPart out[] = {{down_.n(), down}};
  gate_up_.ScaleOutputs(in);
  down_.ScaleOutputs(out);
}

const PackedMatrix* SwiGluFfn::FusedGateUp() const {
  return down_.k() % 32 == 0 && down_.QuantizedMatrix() != nullptr ? gate_up_.QuantizedMatrix()
                                                                   : nullptr;
}

void SwiGluFfn::AddNeeds(ScratchNeeds& needs) const {
  needs.projected = std::max(needs.projected, gate_up_.n());
  needs.mixed = std::max(needs.mixed, down_.k());
  gate_up_.ReadsNormed(needs);
  needs.matmul_k = std::max({needs.matmul_k, gate_up_.k(), down_.k()});
  if (FusedGateUp() != nullptr) needs.glu = std::max(needs.glu, down_.k());
}

void SwiGluFfn::Forward(const Step& step) const {
  ModelWorkspace& scratch = step.scratch;
  const PackedMatrix* fused = FusedGateUp();
  if (fused != nullptr && step.ctx.faults == nullptr) {
    const Activations input = gate_up_.Prepare(step, scratch.normed, step.rows);
    const Activations hidden = GluMatMul(step.ctx, input, *fused, activation_, scratch.glu);
    down_.Apply(step, hidden, scratch.branch, down_.n());
    return;
  }
  // A planted fault sees every matmul and every row that is quantised, so it takes this way too.
  gate_up_.Apply(step, scratch.normed, step.rows, scratch.projected, gate_up_.n());
  const auto glu = activation_ == GluActivation::kSilu ? SwiGluRows : GeGluRows;
  glu(step.ctx, scratch.projected, gate_up_.n(), step.rows, down_.k(), scratch.mixed);
  down_.Apply(step, scratch.mixed, step.rows, scratch.branch, down_.n());
}

}  // namespace cairn
