// Hyperparameters of a Mamba2 mixer, the same keys in every architecture that has one.
#pragma once

#include <string_view>
#include <vector>

#include "kernels/conv1d.h"
#include "kernels/ssd_scan.h"
#include "model/config.h"
#include "state/state_layout.h"

namespace cairn {

struct Mamba2Config {
  SsdShape shape;
  int conv_kernel = 0;
  SsdStepLimits step_limits;

  // Over x | B | C.
  Conv1dShape conv_shape() const {
    return {.channels = shape.inner() + 2 * shape.group_states(),
            .kernel = conv_kernel,
            .activation = ConvActivation::kSilu};
  }
  // Appends the layer's two parts: convolution, then memory.
  void AddParts(int layer, std::vector<StatePart>& parts) const {
    parts.push_back({layer, Conv{conv_shape().state_floats() * sizeof(float)}});
    parts.push_back({layer, Recurrent{shape.state_floats() * sizeof(float)}});
  }
};

// ARCH.ssm.conv_kernel, inner_size, state_size, time_step_rank (heads), group_count;
// time_step_limit (two numbers, a key of ours: converters write none). Errors: DataLoss.
Result<Mamba2Config> ReadMamba2Config(const ModelFile& file, std::string_view architecture);

// The number `architecture`.`key`, or `fallback`. Errors: DataLoss if it is zero or not finite.
Result<float> ReadFactor(const ModelFile& file, std::string_view architecture, std::string_view key,
                         float fallback);

}  // namespace cairn
