// Hyperparameters of Falcon-H1: attention beside Mamba2 in every layer, SwiGLU, and factors on all
// projections.
#pragma once

#include "kernels/gated_ops.h"
#include "model/mamba2_config.h"

namespace cairn {

// The checkpoint's multipliers. A GGUF converter folds them into the weights and writes no keys; a
// file with plain weights has them as keys falcon-h1.NAME: embedding_multiplier,
// lm_head_multiplier, key_multiplier, attention_in_multiplier, attention_out_multiplier,
// ssm_in_multiplier, ssm_out_multiplier, ssm_multipliers (5: z, x, B, C, dt), mlp_multipliers (2:
// gate, down); value_multiplier is only a directory's whose weights hold some of the others.
struct FalconH1Factors {
  float attention_in = 1, key = 1, value = 1, attention_out = 1;
  float ssm_in = 1, ssm_out = 1;
  float ssm[5] = {1, 1, 1, 1, 1};
  float mlp[2] = {1, 1};
};

struct FalconH1Config {
  DecoderConfig decoder;  // embedding and head multipliers are its scales
  Mamba2Config mixer;
  GateOrder gate = GateOrder::kNoNorm;
  FalconH1Factors factors;
};

// Errors: those of ReadDecoderConfig.
Result<FalconH1Config> ReadFalconH1Config(const ModelFile& file);

}  // namespace cairn
