#include "model/moe_config.h"

#include <cmath>
#include <string>

#include "model/config.h"

namespace cairn {
namespace {

constexpr int kExpertsMax = 4096;
constexpr int kFfnMax = 1 << 20;

Result<RouterGate> ReadGate(const ModelFile& file, std::string_view arch, RouterGate fallback) {
  // 0: not said; 1: softmax; 2: sigmoid (GGUF).
  ASSIGN_OR_RETURN(const int code, ReadSize(file, arch, "expert_gating_func", 0, 1 << 16, 0));
  if (code == 0) return fallback;
  if (code == 1) return RouterGate::kSoftmax;
  if (code == 2) return RouterGate::kSigmoid;
  return Unsupported("[model] expert_gating_func " + std::to_string(code) +
                     " is not in this version; it knows 1 (softmax) and 2 (sigmoid)");
}

}  // namespace

Result<std::optional<MoeConfig>> ReadMoeConfig(const ModelFile& file, std::string_view arch,
                                               int ffn, const MoeDefaults& defaults) {
  MoeConfig moe;
  RouterShape& router = moe.router;
  ASSIGN_OR_RETURN(router.experts, ReadSize(file, arch, "expert_count", 0, kExpertsMax, 0));
  if (router.experts == 0) return std::optional<MoeConfig>();
  ASSIGN_OR_RETURN(router.used, ReadSize(file, arch, "expert_used_count", 1, router.experts));
  ASSIGN_OR_RETURN(const int groups, ReadSize(file, arch, "expert_group_count", 0, 1 << 16, 0));
  if (groups > 1) return Unsupported("[model] groups of experts are not in this version");
  ASSIGN_OR_RETURN(moe.expert_ffn,
                   ReadSize(file, arch, "expert_feed_forward_length", 1, kFfnMax, ffn));
  ASSIGN_OR_RETURN(const int shared, ReadSize(file, arch, "expert_shared_count", 0, 1 << 10, 0));
  ASSIGN_OR_RETURN(moe.shared_ffn, ReadSize(file, arch, "expert_shared_feed_forward_length", 0,
                                            kFfnMax, static_cast<int>(shared * moe.expert_ffn)));
  const std::string prefix = std::string(arch) + ".";
  ASSIGN_OR_RETURN(router.gate, ReadGate(file, arch, defaults.gate));
  ASSIGN_OR_RETURN(router.renormalise,
                   file.GetBoolOr(prefix + "expert_weights_norm", defaults.renormalise));
  ASSIGN_OR_RETURN(router.scale, file.GetF32Or(prefix + "expert_weights_scale", 1.0f));
  if (!std::isfinite(router.scale) || router.scale < 0)
    return DataLoss("[model] expert_weights_scale is " + std::to_string(router.scale));
  if (router.scale == 0) router.scale = 1;  // some converters write 0 for "none"
  router.denominator_add = defaults.denominator_add;
  return std::optional<MoeConfig>(moe);
}

}  // namespace cairn
