#include "model/reference/reference_model.h"

#include <algorithm>
#include <cmath>

#include "model/reference/architectures.h"
#include "model/registry.h"

namespace cairn {

Result<std::unique_ptr<ReferenceModel>> LoadReferenceModel(const ModelFile& file) {
  ASSIGN_OR_RETURN(const Architecture* architecture, ArchitectureOf(file));
  return architecture->load_reference(file);
}

namespace reference {

Rotary MakeRotary(const RopeConfig& rope) {
  constexpr double kTwoPi = 6.283185307179586;
  Rotary out;
  out.magnitude = rope.attention_factor;
  const double n = rope.dims;
  // YaRN: the pair that turns `turns` times over the original context.
  const auto pair = [&](double turns) {
    return n * std::log(rope.original_context / (turns * kTwoPi)) / (2 * std::log(rope.base));
  };
  const double low = std::max(std::floor(pair(rope.beta_fast)), 0.0);
  const double high = std::min(std::ceil(pair(rope.beta_slow)), n - 1);
  for (int i = 0; i < rope.dims / 2; ++i) {
    const double plain = std::pow(rope.base, -2.0 * i / n);
    double stretched = plain;
    if (rope.scaling == RopeScalingKind::kLinear) stretched = plain / rope.factor;
    if (rope.scaling == RopeScalingKind::kYarn) {
      const double slow = std::min(1.0, std::max(0.0, (i - low) / std::max(high - low, 0.001)));
      stretched = plain * (1 - slow) + plain / rope.factor * slow;
    }
    out.inv_freq.push_back(stretched);
  }
  if (rope.scaling == RopeScalingKind::kYarn && rope.factor > 1)
    out.magnitude *= 0.1 * std::log(rope.factor) + 1;
  return out;
}

Result<Rotary> LoadRotary(const ModelFile& file, const RopeConfig& rope, int64_t context) {
  Rotary out = MakeRotary(rope);
  const auto divide = [&](const std::string& name) -> Status {
    if (!file.HasTensor(name)) return {};
    ASSIGN_OR_RETURN(const Row factors, LoadVector(file, name, rope.dims / 2));
    for (size_t i = 0; i < factors.size(); ++i) out.inv_freq[i] /= factors[i];
    return {};
  };
  RETURN_IF_ERROR(divide("rope_freqs.weight"));
  RETURN_IF_ERROR(divide(context > rope.original_context ? "rope_factors_long.weight"
                                                         : "rope_factors_short.weight"));
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
