// A mixture of experts in place of the feed-forward block. Source: arXiv 1701.06538; the router's
// forms are those of Qwen3-Next (softmax), DeepSeek-V3 and Kimi (sigmoid, bias in the choice only).
//
//   p = softmax or sigmoid(W_r x); S = the top k of p + bias; w = p over S, maybe renormalised
//   out = sum over e in S, ascending, of w_e expert_e(x)  [ + sigmoid(w_s x) or 1 * shared(x) ]
//   expert(x) = W_down (SiLU(W_gate x) * W_up x), or W_down max(W_up x, 0)^2 (Nemotron-H)
//
// The rows of one expert are gathered, so that a tile of its weights serves all its tokens; the
// order in which a token's experts are summed never depends on them.
//
// Threads: immutable after Load.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "kernels/matmul_grouped.h"
#include "kernels/moe_ops.h"
#include "model/layers/projection.h"
#include "model/layers/relu2_ffn.h"
#include "model/layers/step.h"
#include "model/layers/swiglu_ffn.h"

namespace cairn {

enum class ExpertKind { kSwiGlu, kRelu2 };

struct MoeConfig {
  RouterShape router;
  ExpertKind kind = ExpertKind::kSwiGlu;  // of the shared expert too
  int64_t expert_ffn = 0;
  int64_t shared_ffn = 0;  // 0: no shared expert
};

class MoeFfn {
 public:
  // PREFIX ffn_gate_inp [experts, hidden], exp_probs_b.bias [experts] (optional), ffn_gate_exps,
  // ffn_up_exps [experts, ffn, hidden] or both as ffn_gate_up_exps, ffn_down_exps [experts, hidden,
  // ffn]; with a shared expert ffn_gate_shexp, ffn_up_shexp, ffn_down_shexp and maybe its gate
  // ffn_gate_inp_shexp [hidden]. With kRelu2 there are no gates.
  static Result<MoeFfn> Load(Weights& weights, const std::string& prefix, int64_t hidden,
                             const MoeConfig& config);

  void AddNeeds(ScratchNeeds& needs) const;

  // branch = moe(normed)
  void Forward(const Step& step) const;

 private:
  explicit MoeFfn(const MoeConfig& config) : config_(config) {}
  Status LoadShared(Weights& weights, const std::string& prefix, int64_t hidden);
  Status LoadExperts(Weights& weights, const std::string& prefix, int64_t hidden);
  // Sorts (row, expert) pairs by expert; the number of experts with rows.
  int GroupRows(const ExpertScratch& routes, int rows) const;
  void RunExperts(const Step& step) const;
  // `normed` by (row, expert) pairs, in the order of the experts.
  Activations GatherRows(const Step& step, int pairs) const;

  MoeConfig config_;
  Projection router_;  // [experts], and the shared expert's gate behind them
  std::optional<std::vector<float>> choice_bias_;
  bool shared_gate_ = false;
  std::optional<std::variant<SwiGluFfn, Relu2Ffn>> shared_;
  // Of each expert. gate_up_ holds gate | up, or gate alone with up_ apart; with kRelu2, up.
  std::vector<PackedMatrix> gate_up_, up_, down_;
  bool quantized_in_ = false, quantized_out_ = false;
};

}  // namespace cairn
