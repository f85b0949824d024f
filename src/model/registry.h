// The architectures this build knows. To add one: write its file with an `Architecture` at the end,
// name it in registry.cc, and give it golden fixtures.
//
// Threads: constants and pure functions.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "model/load.h"
#include "model/model_plan.h"
#include "model/reference/reference_model.h"

namespace cairn {

struct Architecture {
  std::string_view name;  // general.architecture
  Result<ModelPlan> (*plan)(const ModelFile& file, KvType kv_type);
  Result<std::unique_ptr<Model>> (*load)(const ModelFile& file, Weights& weights,
                                         const LoadOptions& options);
  Result<std::unique_ptr<ReferenceModel>> (*load_reference)(const ModelFile& file);
  // True for a tensor of the file that the text model does not need (multi-token prediction).
  bool (*ignores)(const ModelFile& file, std::string_view tensor_name);
};

// Errors: Unsupported for an unknown name, listing the known ones; DataLoss without a name.
Result<const Architecture*> ArchitectureOf(const ModelFile& file);
std::span<const Architecture* const> Architectures();

extern const Architecture kQwen35Architecture;
extern const Architecture kQwen35MoeArchitecture;
extern const Architecture kQwen3NextArchitecture;
extern const Architecture kGemma3Architecture;
extern const Architecture kLlamaArchitecture;
extern const Architecture kMistral3Architecture;
extern const Architecture kSmolLm3Architecture;
extern const Architecture kQwen2Architecture;
extern const Architecture kQwen2MoeArchitecture;
extern const Architecture kQwen3Architecture;
extern const Architecture kQwen3MoeArchitecture;
extern const Architecture kLfm2Architecture;
extern const Architecture kLfm2MoeArchitecture;
extern const Architecture kKimiLinearArchitecture;
extern const Architecture kMamba2Architecture;
extern const Architecture kGraniteHybridArchitecture;
extern const Architecture kFalconH1Architecture;
extern const Architecture kNemotronHArchitecture;
extern const Architecture kNemotronHMoeArchitecture;

}  // namespace cairn
