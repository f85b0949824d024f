#include "model/rope_config.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include "model/config.h"

namespace cairn {
namespace {

std::string Key(std::string_view architecture, std::string_view key) {
  return std::string(architecture) + ".rope." + std::string(key);
}

Result<double> ReadNumber(const ModelFile& file, const std::string& key, double fallback) {
  ASSIGN_OR_RETURN(const float value, file.GetF32Or(key, static_cast<float>(fallback)));
  if (!std::isfinite(value) || value <= 0) {
    return DataLoss("[model] " + key + " is " + std::to_string(value) +
                    ", wanted a positive number");
  }
  return value;
}

// Pair (a real number) that turns `turns` times over the original context.
double PairOfTurns(const RopeConfig& config, double turns) {
  constexpr double kTwoPi = 6.283185307179586;
  return config.dims * LogDouble(config.original_context / (turns * kTwoPi)) /
         (2 * LogDouble(config.base));
}

// Fast pairs keep their frequency, slow ones are divided by the factor, a ramp lies between.
void StretchYarn(const RopeConfig& config, std::vector<double>& inv_freq) {
  const double low = std::max(0.0, std::floor(PairOfTurns(config, config.beta_fast)));
  const double high = std::min(config.dims - 1.0, std::ceil(PairOfTurns(config, config.beta_slow)));
  for (size_t i = 0; i < inv_freq.size(); ++i) {
    const double ramp =
        std::clamp((static_cast<double>(i) - low) / std::max(0.001, high - low), 0.0, 1.0);
    inv_freq[i] = inv_freq[i] / config.factor * ramp + inv_freq[i] * (1 - ramp);
  }
}

Status Divide(RopeTable& table, const std::vector<float>& divisors, const char* name) {
  for (int i = 0; i < table.half(); ++i) {
    if (!(divisors[i] > 0)) return DataLoss(std::string("[model] ") + name + " is not positive");
    table.inv_freq[i] /= divisors[i];
  }
  return {};
}

}  // namespace

Result<RopeConfig> ReadRopeConfig(const ModelFile& file, std::string_view arch, int head_dim,
                                  int64_t trained_context) {
  RopeConfig config;
  ASSIGN_OR_RETURN(config.base, ReadNumber(file, Key(arch, "freq_base"), 10000));
  ASSIGN_OR_RETURN(config.dims,
                   ReadSize(file, arch, "rope.dimension_count", 2, head_dim, head_dim));
  if (config.dims % 2 != 0) {
    return DataLoss("[model] rope.dimension_count is " + std::to_string(config.dims) +
                    ", wanted an even number");
  }
  ASSIGN_OR_RETURN(const auto type, file.FindString(Key(arch, "scaling.type")));
  ASSIGN_OR_RETURN(config.attention_factor, ReadNumber(file, Key(arch, "scaling.attn_factor"), 1));
  ASSIGN_OR_RETURN(const int original, ReadSize(file, arch, "rope.scaling.original_context_length",
                                                1, 1 << 30, static_cast<int>(trained_context)));
  config.original_context = original;
  if (!type.has_value() || *type == "none") return config;
  ASSIGN_OR_RETURN(config.factor, ReadNumber(file, Key(arch, "scaling.factor"), 1));
  if (*type == "linear") {
    config.scaling = RopeScalingKind::kLinear;
  } else if (*type == "yarn") {
    config.scaling = RopeScalingKind::kYarn;
    ASSIGN_OR_RETURN(config.beta_fast, ReadNumber(file, Key(arch, "scaling.yarn_beta_fast"), 32));
    ASSIGN_OR_RETURN(config.beta_slow, ReadNumber(file, Key(arch, "scaling.yarn_beta_slow"), 1));
    // mscale_all_dim of the checkpoint, whose mscale is 1: the magnitude is divided by its own.
    ASSIGN_OR_RETURN(const float log_multiplier,
                     file.GetF32Or(Key(arch, "scaling.yarn_log_multiplier"), 0));
    if (!std::isfinite(log_multiplier) || log_multiplier < 0)
      return DataLoss("[model] rope.scaling.yarn_log_multiplier is " +
                      std::to_string(log_multiplier));
    if (config.factor > 1)
      config.attention_factor /= 1 + 0.1 * log_multiplier * LogDouble(config.factor);
  } else if (*type == "longrope") {
    config.scaling = RopeScalingKind::kLongRope;
  } else {
    return Unsupported("[model] rope scaling '" + std::string(type->substr(0, 32)) +
                       "' is not in this version; it knows none, linear, yarn, longrope and "
                       "rope_freqs tensors");
  }
  return config;
}

RopeTable MakeRopeTable(const RopeConfig& config, RopePairs pairs) {
  RopeTable table;
  table.pairs = pairs;
  table.rotary_dims = config.dims;
  table.inv_freq = RopeInverseFrequencies(config.base, config.dims);
  double magnitude = config.attention_factor;
  if (config.scaling == RopeScalingKind::kLinear) {
    for (double& frequency : table.inv_freq) frequency /= config.factor;
  } else if (config.scaling == RopeScalingKind::kYarn) {
    StretchYarn(config, table.inv_freq);
    if (config.factor > 1) magnitude *= 1 + 0.1 * LogDouble(config.factor);
  }
  table.magnitude = static_cast<float>(magnitude);
  return table;
}

Result<RopeTable> LoadRopeTable(Weights& weights, const RopeConfig& config, RopePairs pairs,
                                int64_t context) {
  RopeTable table = MakeRopeTable(config, pairs);
  ASSIGN_OR_RETURN(const auto llama3, weights.OptionalVector("rope_freqs.weight", table.half()));
  if (llama3.has_value()) RETURN_IF_ERROR(Divide(table, *llama3, "rope_freqs.weight"));
  // Both are read, so that a change in either changes the fingerprint.
  ASSIGN_OR_RETURN(const auto long_factors,
                   weights.OptionalVector("rope_factors_long.weight", table.half()));
  ASSIGN_OR_RETURN(const auto short_factors,
                   weights.OptionalVector("rope_factors_short.weight", table.half()));
  if (long_factors.has_value() != short_factors.has_value())
    return DataLoss("[model] one of rope_factors_long and rope_factors_short is missing");
  if (!long_factors.has_value()) {
    if (config.scaling == RopeScalingKind::kLongRope)
      return DataLoss("[model] rope_factors_long.weight is missing");
    return table;
  }
  const bool is_long = context > config.original_context;
  RETURN_IF_ERROR(Divide(table, is_long ? *long_factors : *short_factors, "rope_factors"));
  return table;
}

}  // namespace cairn
