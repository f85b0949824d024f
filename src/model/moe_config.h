// Hyperparameters of a mixture of experts, read from a model file.
//
// Threads: pure function.
#pragma once

#include <optional>
#include <string_view>

#include "base/status.h"
#include "model/layers/moe_ffn.h"
#include "model/model_file.h"

namespace cairn {

// What an architecture does where its file says nothing.
struct MoeDefaults {
  RouterGate gate = RouterGate::kSoftmax;
  bool renormalise = true;
  float denominator_add = 0;
};

// ARCH.expert_count, expert_used_count, expert_feed_forward_length (default `ffn`),
// expert_shared_feed_forward_length or expert_shared_count, expert_gating_func,
// expert_weights_norm, expert_weights_scale. nullopt: no experts. Errors: DataLoss, Unsupported
// (another gating function, expert groups).
Result<std::optional<MoeConfig>> ReadMoeConfig(const ModelFile& file, std::string_view architecture,
                                               int ffn, const MoeDefaults& defaults);

}  // namespace cairn
