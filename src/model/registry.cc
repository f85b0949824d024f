#include "model/registry.h"

#include <array>

namespace cairn {

std::span<const Architecture* const> Architectures() {
  static constexpr auto kAll = std::to_array<const Architecture*>({
      &kQwen35Architecture,        &kQwen35MoeArchitecture,  &kQwen3NextArchitecture,
      &kLlamaArchitecture,         &kMistral3Architecture,   &kSmolLm3Architecture,
      &kQwen2Architecture,         &kQwen2MoeArchitecture,   &kQwen3Architecture,
      &kQwen3MoeArchitecture,      &kGemma3Architecture,     &kLfm2Architecture,
      &kLfm2MoeArchitecture,       &kKimiLinearArchitecture, &kMamba2Architecture,
      &kGraniteHybridArchitecture, &kFalconH1Architecture,   &kNemotronHArchitecture,
      &kNemotronHMoeArchitecture,
  });
  return kAll;
}

Result<const Architecture*> ArchitectureOf(const ModelFile& file) {
  ASSIGN_OR_RETURN(const std::string_view name, file.GetString("general.architecture"));
  std::string known;
  for (const Architecture* architecture : Architectures()) {
    if (architecture->name == name) return architecture;
    known += (known.empty() ? "" : ", ") + std::string(architecture->name);
  }
  return Unsupported("[model] unknown architecture '" + std::string(name.substr(0, 64)) +
                     "'; this version knows " + known);
}

}  // namespace cairn
