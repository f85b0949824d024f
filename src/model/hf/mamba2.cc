// Mamba2, and what all families with its layers share.
#include "model/hf/adapters.h"

namespace cairn {

Status SetMamba2Keys(HfBuilder& b, const Mamba2Sizes& s) {
  if (s.heads < 1 || s.head_dim < 1 || s.heads > 65536 || s.head_dim > 65536)
    return DataLoss("[hf] config.json: got no sizes of Mamba2 heads");
  b.Set("ssm.conv_kernel", s.conv);
  b.Set("ssm.state_size", s.state);
  b.Set("ssm.group_count", s.groups);
  b.Set("ssm.time_step_rank", s.heads);
  b.Set("ssm.inner_size", s.heads * s.head_dim);
  return {};
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
  RETURN_IF_ERROR(SetDecoderKeys(b));
  Mamba2Sizes s;
  ASSIGN_OR_RETURN(s.heads, b.Integer("num_heads"));
  ASSIGN_OR_RETURN(s.head_dim, b.Integer("head_dim"));
  ASSIGN_OR_RETURN(s.state, b.Integer("state_size"));
  ASSIGN_OR_RETURN(s.groups, b.IntegerOr("n_groups", 1));
  ASSIGN_OR_RETURN(s.conv, b.IntegerOr("conv_kernel", 4));
  RETURN_IF_ERROR(SetMamba2Keys(b, s));
  RETURN_IF_ERROR(b.SetRoot({"backbone.", "model."}, "embeddings.weight"));
  RETURN_IF_ERROR(MapFrame(b, "norm_f.weight", HfValue::kAsIs));
  ASSIGN_OR_RETURN(const int64_t layers, b.Integer("num_hidden_layers"));
  for (int64_t i = 0; i < layers; ++i) {
    RETURN_IF_ERROR(b.Map(BlockName(i) + "attn_norm.weight", LayerName(i) + "norm.weight"));
    RETURN_IF_ERROR(MapMamba2(b, BlockName(i), LayerName(i) + "mixer.", s.groups));
  }
  return {};
}

}  // namespace cairn
