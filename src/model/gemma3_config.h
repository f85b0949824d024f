// Hyperparameters of Gemma 3 (text).
#pragma once

#include <vector>

#include "model/config.h"

namespace cairn {

struct Gemma3Config {
  DecoderConfig decoder;  // its rope is that of the global layers
  RopeConfig local_rope;
  int window = 0;                  // positions a local layer sees
  std::vector<int> window_layers;  // [layer_count], 1: local; 0: global

  bool IsGlobal(int layer) const { return window_layers[layer] == 0; }
  AttentionShape shape(int layer, KvType kv_type) const {
    AttentionShape shape = decoder.attention_shape(kv_type);
    if (!IsGlobal(layer)) shape.window = window;
    return shape;
  }
};

// Errors: those of ReadDecoderConfig; Unsupported (soft caps on the logits).
Result<Gemma3Config> ReadGemma3Config(const ModelFile& file);

}  // namespace cairn
