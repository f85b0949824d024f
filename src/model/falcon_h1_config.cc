#include "model/falcon_h1_config.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <string>

namespace cairn {
namespace {

constexpr std::string_view kArch = "falcon-h1";

Status ReadFactors(const ModelFile& file, const std::string& key, std::span<float> factors) {
  const std::string name = std::string(kArch) + "." + key;
  if (!file.Has(name)) return {};
  ASSIGN_OR_RETURN(const std::vector<float> values, file.GetF32Array(name));
  if (values.size() != factors.size() ||
      !std::all_of(values.begin(), values.end(), [](float f) { return std::isfinite(f); })) {
    return DataLoss("[model] " + name + " has " + std::to_string(values.size()) +
                    " values, wanted " + std::to_string(factors.size()) + " finite ones");
  }
  std::copy(values.begin(), values.end(), factors.begin());
  return {};
}

}  // namespace

Result<FalconH1Config> ReadFalconH1Config(const ModelFile& file) {
  FalconH1Config config;
  DecoderConfig& decoder = config.decoder;
  FalconH1Factors& f = config.factors;
  ASSIGN_OR_RETURN(decoder, ReadDecoderConfig(file, kArch));
  ASSIGN_OR_RETURN(config.mixer, ReadMamba2Config(file, kArch));
  // The gated norm exists only in some sizes; in which order, only the checkpoint's config says.
  if (file.HasTensor("blk.0.ssm_norm.weight")) {
    ASSIGN_OR_RETURN(const bool norm_first,
                     file.GetBoolOr("falcon-h1.ssm.norm_before_gate", false));
    config.gate = norm_first ? GateOrder::kNormThenGate : GateOrder::kGateThenNorm;
  }
  ASSIGN_OR_RETURN(decoder.embedding_scale, ReadFactor(file, kArch, "embedding_multiplier", 1));
  ASSIGN_OR_RETURN(decoder.logit_scale, ReadFactor(file, kArch, "lm_head_multiplier", 1));
  ASSIGN_OR_RETURN(f.key, ReadFactor(file, kArch, "key_multiplier", 1));
  ASSIGN_OR_RETURN(f.value, ReadFactor(file, kArch, "value_multiplier", 1));
  ASSIGN_OR_RETURN(f.attention_in, ReadFactor(file, kArch, "attention_in_multiplier", 1));
  ASSIGN_OR_RETURN(f.attention_out, ReadFactor(file, kArch, "attention_out_multiplier", 1));
  ASSIGN_OR_RETURN(f.ssm_in, ReadFactor(file, kArch, "ssm_in_multiplier", 1));
  ASSIGN_OR_RETURN(f.ssm_out, ReadFactor(file, kArch, "ssm_out_multiplier", 1));
  RETURN_IF_ERROR(ReadFactors(file, "ssm_multipliers", f.ssm));
  RETURN_IF_ERROR(ReadFactors(file, "mlp_multipliers", f.mlp));
  return config;
}

}  // namespace cairn
