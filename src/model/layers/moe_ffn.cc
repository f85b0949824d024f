#include "model/layers/moe_ffn.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/gated_ops.h"
#include "kernels/row_ranges.h"
#include "kernels/vector_ops.h"

namespace cairn {

Result<MoeFfn> MoeFfn::Load(Weights& weights, const std::string& prefix, int64_t hidden,
                            const MoeConfig& config) {
  MoeFfn moe(config);
  std::vector<Projection::Part> router = {{prefix + "ffn_gate_inp", config.router.experts}};
  if (config.shared_ffn > 0 && weights.Has(prefix + "ffn_gate_inp_shexp.weight")) {
    router.push_back({prefix + "ffn_gate_inp_shexp", 1});
    moe.shared_gate_ = true;
  }
  ASSIGN_OR_RETURN(moe.router_, Projection::Load(weights, router, hidden));
  ASSIGN_OR_RETURN(moe.choice_bias_,
                   weights.OptionalVector(prefix + "exp_probs_b.bias", config.router.experts));
  if (config.shared_ffn > 0) RETURN_IF_ERROR(moe.LoadShared(weights, prefix, hidden));
  RETURN_IF_ERROR(moe.LoadExperts(weights, prefix, hidden));
  return moe;
}

Status MoeFfn::LoadShared(Weights& weights, const std::string& prefix, int64_t hidden) {
  constexpr const char* kSuffix = "_shexp";
  if (config_.kind == ExpertKind::kRelu2) {
    ASSIGN_OR_RETURN(shared_, Relu2Ffn::Load(weights, prefix, hidden, config_.shared_ffn, kSuffix));
    return {};
  }
  ASSIGN_OR_RETURN(shared_, SwiGluFfn::Load(weights, prefix, hidden, config_.shared_ffn, kSuffix));
  return {};
}

Status MoeFfn::LoadExperts(Weights& weights, const std::string& prefix, int64_t hidden) {
  const int experts = config_.router.experts;
  const int64_t ffn = config_.expert_ffn;
  const Weights::Part gate_up[] = {{prefix + "ffn_gate_exps.weight", ffn},
                                   {prefix + "ffn_up_exps.weight", ffn}};
  const Weights::Part down[] = {{prefix + "ffn_down_exps.weight", hidden}};
  const Weights::Part merged[] = {{prefix + "ffn_gate_up_exps.weight", 2 * ffn}};
  if (config_.kind == ExpertKind::kRelu2) {
    ASSIGN_OR_RETURN(gate_up_, weights.Experts({gate_up + 1, 1}, experts, hidden));
  } else if (weights.Has(merged[0].name)) {
    ASSIGN_OR_RETURN(gate_up_, weights.Experts(merged, experts, hidden));
  } else if (weights.CanStack(gate_up)) {
    ASSIGN_OR_RETURN(gate_up_, weights.Experts(gate_up, experts, hidden));
  } else {
    ASSIGN_OR_RETURN(gate_up_, weights.Experts({gate_up, 1}, experts, hidden));
    ASSIGN_OR_RETURN(up_, weights.Experts({gate_up + 1, 1}, experts, hidden));
  }
  ASSIGN_OR_RETURN(down_, weights.Experts(down, experts, ffn));
  quantized_in_ = IsQuantized(gate_up_[0].type()) || (!up_.empty() && IsQuantized(up_[0].type()));
  quantized_out_ = IsQuantized(down_[0].type());
  return {};
}

void MoeFfn::AddNeeds(ScratchNeeds& needs) const {
  const int64_t used = config_.router.used, ffn = config_.expert_ffn, hidden = router_.k();
  if (shared_.has_value())
    std::visit([&](const auto& shared) { shared.AddNeeds(needs); }, *shared_);
  needs.projected = std::max(needs.projected, used * 2 * ffn);
  needs.mixed = std::max(needs.mixed, used * ffn);
  needs.gates = std::max(needs.gates, router_.n());
  router_.ReadsNormed(needs);
  needs.int8_normed |= quantized_in_;
  needs.matmul_k = std::max(needs.matmul_k, hidden);
  needs.experts = std::max(needs.experts, config_.router.experts);
  needs.experts_used = std::max<int>(needs.experts_used, used);
  needs.expert_k = std::max({needs.expert_k, hidden, ffn});
  needs.routed = std::max(needs.routed, used * hidden);
  for (const auto* matrices : {&gate_up_, &up_, &down_}) {
    if (matrices->empty()) continue;
    needs.idle_expert_bytes +=
        (*matrices)[0].packed_bytes() * (matrices->size() - static_cast<size_t>(used));
  }
}

void MoeFfn::Forward(const Step& step) const {
  ModelWorkspace& scratch = step.scratch;
  const RouterShape& router = config_.router;
  const int64_t width = router_.n(), hidden = router_.k();
  if (shared_.has_value())  // into branch
    std::visit([&](const auto& shared) { shared.Forward(step); }, *shared_);
  float* logits = scratch.gates;  // [rows, experts + shared gate]
  router_.Apply(step, scratch.normed, step.rows, logits, width);
  RouteExperts(step.ctx, router, logits, width,
               choice_bias_.has_value() ? choice_bias_->data() : nullptr, step.rows,
               scratch.experts.ids, scratch.experts.weights);
  RunExperts(step);
  const SharedExpert shared{.y = shared_.has_value() ? scratch.branch : nullptr,
                            .gate = shared_gate_ ? logits + router.experts : nullptr,
                            .gate_stride = width};
  CombineExperts(step.ctx, scratch.routed, scratch.experts.slots, scratch.experts.weights,
                 step.rows, router.used, hidden, shared, scratch.branch);
}

int MoeFfn::GroupRows(const ExpertScratch& routes, int rows) const {
  const int experts = config_.router.experts, pairs = rows * config_.router.used;
  std::fill_n(routes.offsets, experts + 1, 0);
  for (int i = 0; i < pairs; ++i) ++routes.offsets[routes.ids[i] + 1];
  int groups = 0;
  for (int e = 0; e < experts; ++e) {
    const int count = routes.offsets[e + 1];
    routes.offsets[e + 1] += routes.offsets[e];
    if (count > 0) routes.groups[groups++] = {e, routes.offsets[e], count};
  }
  for (int i = 0; i < pairs; ++i) {
    const int32_t slot = routes.offsets[routes.ids[i]]++;
    routes.slots[i] = slot;
    routes.rows[slot] = i / config_.router.used;
  }
  return groups;
}

// Rows that no weight reads as floats are gathered in their int8 form, which each row has already.
Activations MoeFfn::GatherRows(const Step& step, int pairs) const {
  ModelWorkspace& scratch = step.scratch;
  const int32_t* rows = scratch.experts.rows;
  const int64_t hidden = router_.k();
  const auto copy_rows = [&]<typename T>(const T* from, T* to, int64_t n) {
    ForRowRanges(step.ctx, pairs, n, [&](int begin, int end) {
      for (int64_t p = begin; p < end; ++p)
        std::memcpy(to + p * n, from + rows[p] * n, static_cast<size_t>(n) * sizeof(T));
    });
  };
  const bool floats =
      !quantized_in_ ||
      (!up_.empty() && !(IsQuantized(gate_up_[0].type()) && IsQuantized(up_[0].type())));
  if (!floats && scratch.normed_int8.has_value() && step.ctx.faults == nullptr) {
    const ActivationSpace space = CarveActivations(pairs, hidden, scratch.experts.activations);
    copy_rows(scratch.normed_int8->q, space.q, hidden);
    copy_rows(scratch.normed_int8->blocks, space.blocks, hidden / 32);
    return {pairs, hidden, nullptr, space.q, space.blocks};
  }
  float* gathered = scratch.routed;  // [pairs, hidden], by expert
  copy_rows(scratch.normed, gathered, hidden);
  return quantized_in_
             ? PrepareActivations(step.ctx, gathered, pairs, hidden, scratch.experts.activations)
             : FloatActivations(gathered, pairs, hidden);
}

void MoeFfn::RunExperts(const Step& step) const {
  ModelWorkspace& scratch = step.scratch;
  const ExpertScratch& routes = scratch.experts;
  const int64_t hidden = router_.k(), ffn = config_.expert_ffn;
  const int pairs = step.rows * config_.router.used;
  const int groups = GroupRows(routes, step.rows);
  const auto apply = [&](const std::vector<PackedMatrix>& w, const Activations& a, float* y,
                         int64_t ldy) {
    for (int g = 0; g < groups; ++g) {
      const ExpertScratch::Group& group = routes.groups[g];
      routes.matmuls[g] = {&w[group.expert], group.row_begin, group.row_count};
    }
    GroupedMatMul(step.ctx, a, {routes.matmuls, static_cast<size_t>(groups)}, y, ldy);
  };
  const auto input = [&](const float* x, int64_t k, bool quantized) {
    return quantized ? PrepareActivations(step.ctx, x, pairs, k, routes.activations)
                     : FloatActivations(x, pairs, k);
  };
  const Activations in = GatherRows(step, pairs);
  if (config_.kind == ExpertKind::kRelu2) {
    apply(gate_up_, in, scratch.mixed, ffn);
    ReluSquareRows(step.ctx, scratch.mixed, pairs, ffn);
  } else {
    apply(gate_up_, in, scratch.projected, 2 * ffn);
    if (!up_.empty()) apply(up_, in, scratch.projected + ffn, 2 * ffn);
    SwiGluRows(step.ctx, scratch.projected, 2 * ffn, pairs, ffn, scratch.mixed);
  }
  apply(down_, input(scratch.mixed, ffn, quantized_out_), scratch.routed, hidden);
}

}  // namespace cairn
