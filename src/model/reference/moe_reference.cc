#include "model/reference/moe_reference.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace cairn::reference {
namespace {

Row Probabilities(Row logits, RouterGate gate) {
  if (gate == RouterGate::kSigmoid) {
    for (double& x : logits) x = Sigmoid(x);
    return logits;
  }
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (double& x : logits) sum += x = std::exp(x - max);
  for (double& x : logits) x /= sum;
  return logits;
}

// W_down (SiLU(W_gate x) * W_up x), or W_down max(W_up x, 0)^2
Rows Expert(const SwiGlu& expert, ExpertKind kind, const Rows& x) {
  if (kind == ExpertKind::kSwiGlu) return expert(x);
  Rows h = expert.up(x);
  for (Row& row : h) {
    for (double& value : row) value = value > 0 ? value * value : 0.0;
  }
  return expert.down(h);
}

}  // namespace

Rows Moe::operator()(const Rows& x) const {
  Rows out = shared.has_value() ? Expert(*shared, config.kind, x)
                                : Rows(x.size(), Row(x.empty() ? 0 : x[0].size()));
  for (size_t t = 0; t < x.size(); ++t) {
    if (shared_gate.has_value()) {
      const double gate = Sigmoid((*shared_gate)(x[t])[0]);
      for (double& value : out[t]) value *= gate;
    }
    const Row p = Probabilities(router(x[t]), config.router.gate);
    std::vector<int> order(p.size());
    std::iota(order.begin(), order.end(), 0);
    const auto choice = [&](int e) { return p[e] + (choice_bias.empty() ? 0.0 : choice_bias[e]); };
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return choice(a) > choice(b); });
    order.resize(config.router.used);
    double sum = config.router.denominator_add;
    for (const int e : order) sum += p[e];
    for (const int e : order) {
      const double weight = p[e] / (config.router.renormalise ? sum : 1.0) * config.router.scale;
      const Row y = Expert(experts[e], config.kind, {x[t]})[0];
      for (size_t i = 0; i < y.size(); ++i) out[t][i] += weight * y[i];
    }
  }
  return out;
}

Result<Moe> LoadMoe(const ModelFile& file, const std::string& prefix, int64_t hidden,
                    const MoeConfig& config) {
  Moe moe;
  moe.config = config;
  const int64_t count = config.router.experts, ffn = config.expert_ffn;
  ASSIGN_OR_RETURN(moe.router, LoadMatrix(file, prefix + "ffn_gate_inp", count, hidden));
  if (file.HasTensor(prefix + "exp_probs_b.bias")) {
    ASSIGN_OR_RETURN(moe.choice_bias, LoadVector(file, prefix + "exp_probs_b.bias", count));
  }
  if (config.shared_ffn > 0) {
    SwiGlu shared;
    if (config.kind == ExpertKind::kSwiGlu) {
      ASSIGN_OR_RETURN(shared.gate,
                       LoadMatrix(file, prefix + "ffn_gate_shexp", config.shared_ffn, hidden));
    }
    ASSIGN_OR_RETURN(shared.up,
                     LoadMatrix(file, prefix + "ffn_up_shexp", config.shared_ffn, hidden));
    ASSIGN_OR_RETURN(shared.down,
                     LoadMatrix(file, prefix + "ffn_down_shexp", hidden, config.shared_ffn));
    moe.shared = std::move(shared);
    if (file.HasTensor(prefix + "ffn_gate_inp_shexp.weight")) {
      ASSIGN_OR_RETURN(moe.shared_gate, LoadMatrix(file, prefix + "ffn_gate_inp_shexp", 1, hidden));
    }
  }
  // All experts are one tensor: rows of expert e begin at e * n.
  const bool merged = file.HasTensor(prefix + "ffn_gate_up_exps.weight");  // gate, up of each
  Matrix gate;
  if (config.kind == ExpertKind::kSwiGlu && !merged) {
    ASSIGN_OR_RETURN(gate, LoadMatrix(file, prefix + "ffn_gate_exps", count * ffn, hidden));
  }
  ASSIGN_OR_RETURN(const Matrix up,
                   LoadMatrix(file, prefix + (merged ? "ffn_gate_up_exps" : "ffn_up_exps"),
                              (merged ? 2 : 1) * count * ffn, hidden));
  ASSIGN_OR_RETURN(const Matrix down,
                   LoadMatrix(file, prefix + "ffn_down_exps", count * hidden, ffn));
  const auto slice = [](const Matrix& all, int64_t e, int64_t n) {
    const auto begin = all.w.begin() + e * n * all.k;
    return Matrix{n, all.k, {begin, begin + n * all.k}, {}};
  };
  for (int64_t e = 0; e < count; ++e) {
    SwiGlu expert;
    if (config.kind == ExpertKind::kSwiGlu && !merged) expert.gate = slice(gate, e, ffn);
    if (merged) expert.gate = slice(up, 2 * e, ffn);
    expert.up = slice(up, merged ? 2 * e + 1 : e, ffn);
    expert.down = slice(down, e, hidden);
    moe.experts.push_back(std::move(expert));
  }
  return moe;
}

}  // namespace cairn::reference
