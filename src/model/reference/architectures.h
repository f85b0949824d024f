// The reference models by architecture, and what they share besides arithmetic.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/reference/reference_math.h"
#include "model/reference/reference_model.h"

namespace cairn::reference {

Result<std::unique_ptr<ReferenceModel>> LoadQwen35Reference(const ModelFile& file);
Result<std::unique_ptr<ReferenceModel>> LoadLlamaReference(const ModelFile& file);

// rope_base^(-2i/n) / rope_scale for i < n / 2.
std::vector<double> Frequencies(const DecoderConfig& config);

// Rows [tokens][kv_heads * d] as a state [kv_heads, tokens, d].
StateTensor KvState(const std::string& name, const Rows& rows, int kv_heads, int64_t d);

}  // namespace cairn::reference
