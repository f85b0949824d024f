// Mixtures of experts in the three forms that directories hold: one tensor an expert, experts
// stacked (MLX), gate and up in one tensor (fused).
#include "model/hf/adapters.h"

namespace cairn {
namespace {

// Rows of every expert, one after the other.
Status MapOneByOne(HfBuilder& b, const std::string& to, const std::string& from,
                   const std::string& part, int64_t experts) {
  std::vector<HfRun> runs;
  for (int64_t e = 0; e < experts; ++e) {
    ASSIGN_OR_RETURN(const HfSource* source,
                     b.Source(from + std::to_string(e) + "." + part + ".weight"));
    runs.push_back({source, 0, source->rows});
  }
  const int64_t rows = runs.front().count, k = runs.front().source->k;
  return b.MapRuns(to, std::move(runs), {experts, rows, k});
}

// Rows [begin, begin + count) of every expert of a stacked tensor.
Status MapPart(HfBuilder& b, const std::string& to, const std::string& name, int64_t experts,
               int64_t begin, int64_t count) {
  ASSIGN_OR_RETURN(const HfSource* source, b.Source(name));
  if (source->shape.size() != 3 || source->shape[0] != experts ||
      source->shape[1] < begin + count) {
    return DataLoss("[hf] tensor '" + source->name + "': got another shape, wanted [" +
                    std::to_string(experts) + ", at least " + std::to_string(begin + count) +
                    ", inputs]");
  }
  std::vector<HfRun> runs;
  for (int64_t e = 0; e < experts; ++e)
    runs.push_back({source, e * source->shape[1] + begin, count});
  return b.MapRuns(to, std::move(runs), {experts, count, source->k});
}

}  // namespace

Status MapExperts(HfBuilder& b, const std::string& to, const std::string& from,
                  const ExpertNames& names, int64_t experts, int64_t ffn) {
  if (experts < 1 || experts > 65536 || ffn < 1) return DataLoss("[hf] no sizes of experts");
  const std::pair<const char*, const char*> parts[] = {{"ffn_gate_exps.weight", names.gate},
                                                       {"ffn_up_exps.weight", names.up},
                                                       {"ffn_down_exps.weight", names.down}};
  const std::string fused = from + names.fused;
  if (names.fused[0] != '\0' && b.Has(fused)) {
    RETURN_IF_ERROR(MapPart(b, to + parts[0].first, fused, experts, 0, ffn));
    RETURN_IF_ERROR(MapPart(b, to + parts[1].first, fused, experts, ffn, ffn));
    return b.Map(to + parts[2].first, from + names.fused_down);
  }
  for (const auto& [name, part] : parts) {
    if (part[0] == '\0') continue;
    const std::string stacked = from + "switch_mlp." + part + ".weight";
    RETURN_IF_ERROR(b.Has(stacked) ? b.Map(to + name, stacked)
                                   : MapOneByOne(b, to + name, from + "experts.", part, experts));
  }
  return {};
}

}  // namespace cairn
