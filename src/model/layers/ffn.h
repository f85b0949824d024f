// The feed-forward block of a layer: SwiGLU, or a mixture of experts in its place.
//
// Threads: immutable after load.
#pragma once

#include <optional>
#include <string>
#include <variant>

#include "model/layers/moe_ffn.h"
#include "model/layers/swiglu_ffn.h"

namespace cairn {

using Ffn = std::variant<SwiGluFfn, MoeFfn>;

// A mixture if `moe` is set, else SwiGLU with `ffn` rows. Errors: those of the two.
Result<Ffn> LoadFfn(Weights& weights, const std::string& prefix, int64_t hidden, int64_t ffn,
                    const std::optional<MoeConfig>& moe);

}  // namespace cairn
