// Hyperparameters of Qwen3.5 and Qwen3-Next, dense or with experts: Gated DeltaNet layers with
// gated full attention in every n-th, or in those that the file names.
#pragma once

#include <optional>
#include <vector>

#include "kernels/gated_delta.h"
#include "model/config.h"
#include "model/layers/gated_delta_layer.h"
#include "model/moe_config.h"

namespace cairn {

struct Qwen35Config {
  DecoderConfig decoder;
  GatedDeltaShape delta;
  int conv_kernel = 0;
  std::vector<int> recurrent_layers;  // [layer_count], 0: attention; 1: Gated DeltaNet
  GateRows gate_rows = GateRows::kApart;
  std::optional<MoeConfig> moe;

  bool IsAttention(int layer) const { return recurrent_layers[layer] == 0; }
};

// Errors: those of ReadDecoderConfig. Layers for multi-token prediction at the end of the file are
// not counted.
Result<Qwen35Config> ReadQwen35Config(const ModelFile& file);

}  // namespace cairn
