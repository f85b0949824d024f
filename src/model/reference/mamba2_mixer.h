// The Mamba2 mixer of the reference models, one token after the other.
#pragma once

#include <string>
#include <vector>

#include "kernels/gated_ops_levels.h"
#include "model/mamba2_config.h"
#include "model/reference/reference_math.h"
#include "model/state_tensor.h"

namespace cairn::reference {

struct Mamba2Mixer {
  Mamba2Config config;
  GateOrder gate = GateOrder::kGateThenNorm;
  double eps = 0;
  Matrix in, out;
  Row conv, conv_bias;  // [channels, K], [channels] or empty
  Row dt_bias, a_neg, d, norm;
  Row in_scale;  // [in.n]: factors on z | x | B | C | dt; empty: none

  // Appends TAGconv and TAGssm.
  Rows operator()(const Rows& x, const std::string& tag, std::vector<StateTensor>& states) const;

 private:
  Rows Scan(const Rows& ubc, const Rows& raw, Rows& memory) const;
  Row GateAndNorm(const Row& y, const Row& z) const;
};

Result<Mamba2Mixer> LoadMamba2Mixer(const ModelFile& file, const std::string& prefix,
                                    const Mamba2Config& config, GateOrder gate,
                                    const DecoderConfig& decoder);

}  // namespace cairn::reference
