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
Result<std::unique_ptr<ReferenceModel>> LoadMamba2Reference(const ModelFile& file);
Result<std::unique_ptr<ReferenceModel>> LoadGraniteHybridReference(const ModelFile& file);
Result<std::unique_ptr<ReferenceModel>> LoadFalconH1Reference(const ModelFile& file);
Result<std::unique_ptr<ReferenceModel>> LoadNemotronHReference(const ModelFile& file);
Result<std::unique_ptr<ReferenceModel>> LoadGemma3Reference(const ModelFile& file);
Result<std::unique_ptr<ReferenceModel>> LoadLfm2Reference(const ModelFile& file);
Result<std::unique_ptr<ReferenceModel>> LoadKimiLinearReference(const ModelFile& file);

struct Rotary {
  std::vector<double> inv_freq;  // [n / 2]
  double magnitude = 1;          // on cos and sin
};
// base^(-2i/n) for i < n / 2, stretched; without and with the file's divisors.
Rotary MakeRotary(const RopeConfig& rope);
Result<Rotary> LoadRotary(const ModelFile& file, const RopeConfig& rope, int64_t context);

// Rows [tokens][kv_heads * d] as a state [kv_heads, tokens, d].
StateTensor KvState(const std::string& name, const Rows& rows, int kv_heads, int64_t d);

}  // namespace cairn::reference
