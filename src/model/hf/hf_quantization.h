// What config.json says of quantisation.
// Threads: pure functions.
#pragma once

#include <string_view>

#include "base/status.h"
#include "model/hf/json.h"

namespace cairn {

struct AffineSettings {
  int bits = 0;
  int group = 0;
  bool sure = true;  // false: other layers have settings of their own, this one none
};

// Unsupported, naming it, for every quantisation but MLX's affine one (gptq, awq, fp8, mxfp4, ...).
Status CheckQuantization(const JsonValue& config);

// Bits and group of the layer `name` ("model.layers.0.mlp.up_proj"): its own entry in
// `quantization`, else the common one. Errors: DataLoss without one; Unsupported for bits other
// than 4 and 8, groups other than 32, 64 and 128.
Result<AffineSettings> ReadAffineSettings(const JsonValue& config, std::string_view name);

}  // namespace cairn
