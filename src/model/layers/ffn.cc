#include "model/layers/ffn.h"

#include <utility>

namespace cairn {

Result<Ffn> LoadFfn(Weights& weights, const std::string& prefix, int64_t hidden, int64_t ffn,
                    const std::optional<MoeConfig>& moe) {
  if (moe.has_value()) {
    ASSIGN_OR_RETURN(MoeFfn experts, MoeFfn::Load(weights, prefix, hidden, *moe));
    return Ffn(std::move(experts));
  }
  ASSIGN_OR_RETURN(SwiGluFfn dense, SwiGluFfn::Load(weights, prefix, hidden, ffn));
  return Ffn(std::move(dense));
}

}  // namespace cairn
