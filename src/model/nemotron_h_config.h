// Hyperparameters of Nemotron-H: one block a layer, a Mamba2 mixer, attention or a feed-forward
// block (with experts: Nemotron 3), by two arrays of the file.
#pragma once

#include <optional>
#include <vector>

#include "model/layers/moe_ffn.h"
#include "model/mamba2_config.h"

namespace cairn {

enum class NemotronBlock { kMamba, kAttention, kFfn };

struct NemotronHConfig {
  DecoderConfig decoder;  // ffn_size is the widest
  Mamba2Config mixer;
  std::vector<int> ffn_sizes;         // [layer_count], 0: no feed-forward block
  std::vector<NemotronBlock> blocks;  // [layer_count]
  std::optional<MoeConfig> moe;       // in every feed-forward block
};

// Of architecture "nemotron_h" or "nemotron_h_moe". Errors: those of ReadDecoderConfig; DataLoss
// for a layer that is two kinds of block.
Result<NemotronHConfig> ReadNemotronHConfig(const ModelFile& file);

}  // namespace cairn
