#include "model/reference/reference_model.h"

#include <cmath>

#include "model/reference/architectures.h"
#include "model/registry.h"

namespace cairn {

Result<std::unique_ptr<ReferenceModel>> LoadReferenceModel(const ModelFile& file) {
  ASSIGN_OR_RETURN(const Architecture* architecture, ArchitectureOf(file));
  return architecture->load_reference(file);
}

namespace reference {

std::vector<double> Frequencies(const DecoderConfig& config) {
  std::vector<double> out;
  for (int i = 0; i < config.rotary_dims / 2; ++i) {
    out.push_back(std::pow(config.rope_base, -2.0 * i / config.rotary_dims) / config.rope_scale);
  }
  return out;
}

StateTensor KvState(const std::string& name, const Rows& rows, int kv_heads, int64_t d) {
  const int64_t tokens = rows.size();
  StateTensor out{name, {kv_heads, tokens, d}, {}};
  for (int h = 0; h < kv_heads; ++h) {
    for (const Row& row : rows)
      out.data.insert(out.data.end(), row.begin() + h * d, row.begin() + (h + 1) * d);
  }
  return out;
}

}  // namespace reference
}  // namespace cairn
