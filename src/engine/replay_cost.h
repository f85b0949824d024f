// What replaying prompt tokens costs with this model, for the value policy of the cache.
// Threads: a pure function.
#pragma once

#include <algorithm>
#include <variant>

#include "cache/cache_options.h"
#include "model/model.h"

namespace cairn {

// FLOPs of the token at position t: 2 for each weight that one token reads, and in each layer with
// full attention 4 * hidden_size for each earlier token (scores and weighted sum; heads * head_dim
// is taken as hidden_size, which it is within a factor of two in the models we know).
inline ReplayCost EstimateReplayCost(const Model& model) {
  const ModelInfo& info = model.info();
  double weights = static_cast<double>(info.parameter_count);
  // Of a mixture of experts one token reads a part.
  if (info.weight_bytes > 0 && info.bytes_per_decode_token > 0) {
    weights *= std::min(1.0, static_cast<double>(info.bytes_per_decode_token) /
                                 static_cast<double>(info.weight_bytes));
  }
  int attention_layers = 0;
  for (const StatePart& part : model.layout().parts()) {
    attention_layers += std::holds_alternative<FullKv>(part.kind);
  }
  return {.per_token = std::max(1.0, 2 * weights),
          .per_token_position = 4.0 * info.hidden_size * attention_layers};
}

}  // namespace cairn
