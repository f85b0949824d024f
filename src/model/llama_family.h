// Hyperparameters of decoders whose layers are all full attention: Llama and those that differ from
// it in one or two places.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "kernels/rope.h"
#include "model/config.h"
#include "model/layers/attention_layer.h"
#include "model/moe_config.h"

namespace cairn {

struct LlamaFamily {
  std::string_view name;  // general.architecture
  // GGUF's converter permutes the rows of q and k of some so that a pair lies side by side.
  RopePairs pairs = RopePairs::kHalfSplit;
  bool head_norms = false;  // RMSNorm over each head of q and k
  // n: every n-th layer has no positions (NoPE), unless the file says which; 0: all layers have
  // them.
  int rotary_interval = 0;
  bool renormalise = true;       // weights of the chosen experts
  bool growing_queries = false;  // may have them
};

struct LlamaConfig {
  LlamaFamily family;
  DecoderConfig decoder;
  std::optional<MoeConfig> moe;
  QueryGrowth growth;
  int window = 0;                  // positions a query sees (Mistral of 2023); 0: all
  std::vector<int> rotary_layers;  // [layer_count], 0 or 1: whether the layer has positions

  bool HasPositions(int layer) const { return rotary_layers[layer] != 0; }
};

// Of a file whose architecture is one of the family. Errors: those of ReadDecoderConfig.
Result<LlamaConfig> ReadLlamaConfig(const ModelFile& file);

}  // namespace cairn
