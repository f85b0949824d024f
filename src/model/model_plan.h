// What a file's metadata says about a model, before any weight is read.
//
// Threads: pure functions.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "kernels/kv_type.h"
#include "model/config.h"
#include "state/state_layout.h"

namespace cairn {

struct ModelPlan {
  DecoderConfig decoder;
  StateLayout layout;
  int attention_layers = 0;
  int recurrent_layers = 0;
};

// The plan of a decoder whose layer i has the state parts that `add_parts(i, parts)` appends. A
// layer with keys and values of all positions counts as attention, one with any other state as
// recurrent; Falcon-H1's are both. Errors: those of StateLayout::Create.
using AddLayerParts = std::function<void(int layer, std::vector<StatePart>& parts)>;
Result<ModelPlan> PlanLayers(const DecoderConfig& decoder, const AddLayerParts& add_parts);

// Keys and values of one attention layer at all positions.
FullKv FullKvOf(const DecoderConfig& decoder, KvType kv_type);

// True for "blk.N.…" with N >= layer_count: layers of multi-token prediction lie behind the text
// model's.
bool LiesBehindLayers(std::string_view tensor_name, int layer_count);

}  // namespace cairn
