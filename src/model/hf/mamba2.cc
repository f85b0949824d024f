// Mamba2, and what all families with its layers share.
#include <algorithm>
#include <cmath>
#include <limits>

#include "model/hf/adapters.h"

namespace cairn {

Result<int64_t> ReadMamba2HeadDim(const HfBuilder& b, int64_t heads) {
  const JsonValue* value = b.Find("mamba_d_head");
  if (value != nullptr && value->AsString() != "auto") return b.Integer("mamba_d_head");
  ASSIGN_OR_RETURN(const int64_t hidden, b.Integer("hidden_size"));
  ASSIGN_OR_RETURN(const int64_t expand, b.IntegerOr("mamba_expand", 2));
  if (expand < 1 || expand > 1024 || hidden > (int64_t{1} << 40))
    return DataLoss("[hf] config.json: got no sizes of Mamba2 heads");
  ASSIGN_OR_RETURN(const int64_t inner, b.IntegerOr("mamba_d_ssm", expand * hidden));
  if (heads < 1 || inner % heads != 0) {
    return DataLoss("[hf] config.json: got " + std::to_string(heads) +
                    " mamba_n_heads, wanted a divisor of " + std::to_string(inner));
  }
  return inner / heads;
}

// time_step_limit: two numbers. Transformers and mlx-lm write infinity as {"__float__":
// "Infinity"}.
static Status SetStepLimits(HfBuilder& b) {
  const JsonValue* list = b.Find("time_step_limit");
  if (list == nullptr) return {};
  std::vector<float> limits;
  constexpr double kMax = std::numeric_limits<float>::max();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const JsonValue& value : list->elements()) {
    const JsonValue* tagged = value.Find("__float__");
    const auto number = (tagged == nullptr ? value : *tagged).AsNumber();
    const bool infinite = tagged != nullptr && tagged->AsString() == "Infinity";
    if (infinite || number) {
      limits.push_back(infinite || *number > kMax ? kInfinity
                                                  : static_cast<float>(std::max(*number, -1.0)));
    }
  }
  if (limits.size() != 2 || !(limits[0] >= 0) || !(limits[1] >= limits[0])) {
    return DataLoss("[hf] config.json: got " + list->Describe() +
                    " as time_step_limit, wanted the least and the largest step");
  }
  if (limits[0] > 0 || std::isfinite(limits[1])) b.SetFloats("ssm.time_step_limit", limits);
  return {};
}

Status SetMamba2Keys(HfBuilder& b, const Mamba2Sizes& s) {
  if (s.heads < 1 || s.head_dim < 1 || s.heads > 65536 || s.head_dim > 65536)
    return DataLoss("[hf] config.json: got no sizes of Mamba2 heads");
  b.Set("ssm.conv_kernel", s.conv);
  b.Set("ssm.state_size", s.state);
  b.Set("ssm.group_count", s.groups);
  b.Set("ssm.time_step_rank", s.heads);
  b.Set("ssm.inner_size", s.heads * s.head_dim);
  return SetStepLimits(b);
}

Status MapMamba2(HfBuilder& b, const std::string& to, const std::string& from, int64_t groups) {
  RETURN_IF_ERROR(b.MapLinear(to + "ssm_in", from + "in_proj"));
  RETURN_IF_ERROR(b.MapLinear(to + "ssm_out", from + "out_proj"));
  RETURN_IF_ERROR(b.MapLinear(to + "ssm_conv1d", from + "conv1d"));
  RETURN_IF_ERROR(b.Map(to + "ssm_a", from + "A_log", HfValue::kNegExp));
  RETURN_IF_ERROR(b.Map(to + "ssm_d", from + "D"));
  RETURN_IF_ERROR(b.Map(to + "ssm_dt.bias", from + "dt_bias"));
  if (!b.Has(from + "norm.weight")) return {};
  ASSIGN_OR_RETURN(const HfSource* norm, b.Source(from + "norm.weight"));
  if (groups < 1 || norm->rows % groups != 0)
    return DataLoss("[hf] tensor '" + norm->name + "': its rows do not divide into groups");
  return b.MapRuns(to + "ssm_norm.weight", {{norm, 0, norm->rows}}, {groups, norm->rows / groups});
}

Status BuildMamba2(HfBuilder& b) {
  b.SetDefaults(R"({"layer_norm_epsilon": 1e-05, "num_heads": 128, "head_dim": 64,
                    "state_size": 128, "n_groups": 8, "conv_kernel": 4})");  // Mamba2Config
  RETURN_IF_ERROR(b.Demand("hidden_act", "silu"));
  RETURN_IF_ERROR(SetDecoderKeys(b));
  Mamba2Sizes s;
  ASSIGN_OR_RETURN(s.heads, b.Integer("num_heads"));
  ASSIGN_OR_RETURN(s.head_dim, b.Integer("head_dim"));
  ASSIGN_OR_RETURN(s.state, b.Integer("state_size"));
  ASSIGN_OR_RETURN(s.groups, b.Integer("n_groups"));
  ASSIGN_OR_RETURN(s.conv, b.Integer("conv_kernel"));
  RETURN_IF_ERROR(SetMamba2Keys(b, s));
  RETURN_IF_ERROR(b.SetRoot({"backbone.", "model.backbone.", "model."}, "embeddings.weight"));
  RETURN_IF_ERROR(MapFrame(b, "norm_f.weight", HfValue::kAsIs));
  ASSIGN_OR_RETURN(const int64_t layers, b.Integer("num_hidden_layers"));
  for (int64_t i = 0; i < layers; ++i) {
    RETURN_IF_ERROR(b.Map(BlockName(i) + "attn_norm.weight", LayerName(i) + "norm.weight"));
    const std::string from = LayerName(i) + "mixer.";
    RETURN_IF_ERROR(ExpectBiases(b, "use_conv_bias", true, from, {"conv1d"}));
    RETURN_IF_ERROR(ExpectBiases(b, "use_bias", false, from, {"in_proj", "out_proj"}));
    RETURN_IF_ERROR(MapMamba2(b, BlockName(i), from, s.groups));
  }
  return {};
}

}  // namespace cairn
