// Mamba2, and Nemotron-H: Mamba2, attention and MLP blocks, one a layer.
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

Status BuildNemotronH(HfBuilder& b) {
  RETURN_IF_ERROR(SetDecoderKeys(b));
  ASSIGN_OR_RETURN(const int64_t layers, b.Integer("num_hidden_layers"));
  ASSIGN_OR_RETURN(const std::string pattern, b.StringOr("hybrid_override_pattern", ""));
  if (static_cast<int64_t>(pattern.size()) != layers ||
      pattern.find_first_not_of("M*-") != std::string::npos) {
    return Unsupported("[hf] config.json: got hybrid_override_pattern '" + pattern.substr(0, 80) +
                       "', wanted M, * and - for each of " + std::to_string(layers) + " layers");
  }
  RETURN_IF_ERROR(b.Demand("mlp_hidden_act", "relu2"));
  ASSIGN_OR_RETURN(const int64_t heads, b.Integer("num_attention_heads"));
  ASSIGN_OR_RETURN(const int64_t kv_heads, b.IntegerOr("num_key_value_heads", heads));
  ASSIGN_OR_RETURN(const int64_t ffn, b.Integer("intermediate_size"));
  std::vector<int64_t> layer_kv_heads, layer_ffn;
  for (const char kind : pattern) {
    layer_kv_heads.push_back(kind == '*' ? kv_heads : 0);
    layer_ffn.push_back(kind == '-' ? ffn : 0);
  }
  RETURN_IF_ERROR(SetHeadKeys(b, layer_kv_heads).status());
  b.SetIntegers("feed_forward_length", layer_ffn);
  Mamba2Sizes s;
  ASSIGN_OR_RETURN(s.heads, b.Integer("mamba_num_heads"));
  ASSIGN_OR_RETURN(s.head_dim, b.Integer("mamba_head_dim"));
  ASSIGN_OR_RETURN(s.state, b.Integer("ssm_state_size"));
  ASSIGN_OR_RETURN(s.groups, b.IntegerOr("n_groups", 1));
  ASSIGN_OR_RETURN(s.conv, b.IntegerOr("conv_kernel", 4));
  RETURN_IF_ERROR(SetMamba2Keys(b, s));
  RETURN_IF_ERROR(b.SetRoot({"backbone.", "model."}, "embeddings.weight"));
  RETURN_IF_ERROR(MapFrame(b, "norm_f.weight", HfValue::kAsIs));
  for (int64_t i = 0; i < layers; ++i) {
    const std::string to = BlockName(i), from = LayerName(i) + "mixer.";
    RETURN_IF_ERROR(b.Map(to + "attn_norm.weight", LayerName(i) + "norm.weight"));
    if (pattern[i] == 'M') {
      RETURN_IF_ERROR(MapMamba2(b, to, from, s.groups));
    } else if (pattern[i] == '-') {
      RETURN_IF_ERROR(b.MapLinear(to + "ffn_up", from + "up_proj"));
      RETURN_IF_ERROR(b.MapLinear(to + "ffn_down", from + "down_proj"));
    } else {
      RETURN_IF_ERROR(b.MapPairs(to + "attn_q", from + "q_proj", heads));
      RETURN_IF_ERROR(b.MapPairs(to + "attn_k", from + "k_proj", kv_heads));
      RETURN_IF_ERROR(b.MapLinear(to + "attn_v", from + "v_proj"));
      RETURN_IF_ERROR(b.MapLinear(to + "attn_output", from + "o_proj"));
    }
  }
  return {};
}

}  // namespace cairn
