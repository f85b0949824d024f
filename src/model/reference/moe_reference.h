// A mixture of experts, token after token. The equations are those of layers/moe_ffn.h.
//
// Threads: pure functions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "model/layers/moe_ffn.h"
#include "model/reference/reference_math.h"

namespace cairn::reference {

struct Moe {
  MoeConfig config;
  Matrix router;
  Row choice_bias;  // or empty
  std::vector<SwiGlu> experts;
  std::optional<SwiGlu> shared;  // with kRelu2 there are no gates: gate is empty
  std::optional<Matrix> shared_gate;

  Rows operator()(const Rows& x) const;
};

Result<Moe> LoadMoe(const ModelFile& file, const std::string& prefix, int64_t hidden,
                    const MoeConfig& config);

}  // namespace cairn::reference
