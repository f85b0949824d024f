#include "model/reference/mamba2_mixer.h"
#include "model/reference/reference_parts.h"

#include <algorithm>
#include <cmath>

namespace cairn::reference {
namespace {

Row Slice(const Row& row, int64_t begin, int64_t count) {
  return Row(row.begin() + begin, row.begin() + begin + count);
}

}  // namespace

Rows Mamba2Mixer::operator()(const Rows& x, const std::string& tag,
                             std::vector<StateTensor>& states) const {
  const SsdShape& s = config.shape;
  const int64_t inner = s.inner(), channels = config.conv_shape().channels;
  Rows z, xbc, raw;
  for (Row p : in(x)) {
    for (size_t i = 0; i < in_scale.size(); ++i) p[i] *= in_scale[i];
    z.push_back(Slice(p, 0, inner));
    xbc.push_back(Slice(p, inner, channels));
    raw.push_back(Slice(p, inner + channels, s.heads));
  }
  Rows memory(s.heads, Row(int64_t{s.head_dim} * s.state_dim, 0.0));  // [H][P, N]
  Rows y = Scan(Silu(CausalConv(conv, config.conv_kernel, conv_bias, xbc)), raw, memory);
  for (size_t t = 0; t < y.size(); ++t) y[t] = GateAndNorm(y[t], z[t]);

  StateTensor ssm{tag + "ssm", {s.heads, s.head_dim, s.state_dim}, {}};
  for (const Row& head : memory) ssm.data.insert(ssm.data.end(), head.begin(), head.end());
  states.push_back(ConvState(tag, config.conv_kernel - 1, {{&xbc}}));
  states.push_back(std::move(ssm));
  return out(y);
}

// M <- exp(a_neg dt) M + (dt u) B^T;  y = M C + D u
Rows Mamba2Mixer::Scan(const Rows& ubc, const Rows& raw, Rows& memory) const {
  const SsdShape& s = config.shape;
  const int64_t inner = s.inner();
  Rows y(ubc.size(), Row(inner));
  for (size_t t = 0; t < ubc.size(); ++t) {
    for (int64_t h = 0; h < s.heads; ++h) {
      const int64_t group = h / (s.heads / s.groups);
      const double* b = &ubc[t][inner + group * s.state_dim];
      const double* c = &ubc[t][inner + s.group_states() + group * s.state_dim];
      const double dt = std::clamp<double>(Softplus(raw[t][h] + dt_bias[h]), config.step_limits.min,
                                           config.step_limits.max);
      const double decay = std::exp(a_neg[h] * dt);
      for (int64_t p = 0; p < s.head_dim; ++p) {
        const double u = ubc[t][h * s.head_dim + p];
        double* m = &memory[h][p * s.state_dim];
        double sum = d[h] * u;
        for (int64_t n = 0; n < s.state_dim; ++n) {
          m[n] = decay * m[n] + dt * u * b[n];
          sum += m[n] * c[n];
        }
        y[t][h * s.head_dim + p] = sum;
      }
    }
  }
  return y;
}

Row Mamba2Mixer::GateAndNorm(const Row& y, const Row& z) const {
  const int64_t width = config.shape.inner() / config.shape.groups;
  const auto gated = [&](Row x) {
    for (size_t i = 0; i < x.size(); ++i) x[i] *= Silu(z[i]);
    return x;
  };
  const auto normed = [&](const Row& x) {
    Row out;
    for (int64_t g = 0; g < config.shape.groups; ++g) {
      const Row part = RmsNorm(Slice(x, g * width, width), Slice(norm, g * width, width), eps);
      out.insert(out.end(), part.begin(), part.end());
    }
    return out;
  };
  switch (gate) {
    case GateOrder::kNoNorm:
      return gated(y);
    case GateOrder::kGateThenNorm:
      return normed(gated(y));
    case GateOrder::kNormThenGate:
      return gated(normed(y));
  }
  return y;
}

Result<Mamba2Mixer> LoadMamba2Mixer(const ModelFile& file, const std::string& prefix,
                                    const Mamba2Config& config, GateOrder gate,
                                    const DecoderConfig& decoder) {
  const SsdShape& s = config.shape;
  const int64_t channels = config.conv_shape().channels;
  Mamba2Mixer mixer;
  mixer.config = config;
  mixer.gate = gate;
  mixer.eps = decoder.norm_eps;
  ASSIGN_OR_RETURN(mixer.in, LoadMatrix(file, prefix + "ssm_in", s.inner() + channels + s.heads,
                                        decoder.hidden_size));
  ASSIGN_OR_RETURN(mixer.out, LoadMatrix(file, prefix + "ssm_out", decoder.hidden_size, s.inner()));
  ASSIGN_OR_RETURN(mixer.conv,
                   LoadVector(file, prefix + "ssm_conv1d.weight", channels * config.conv_kernel));
  if (file.HasTensor(prefix + "ssm_conv1d.bias")) {
    ASSIGN_OR_RETURN(mixer.conv_bias, LoadVector(file, prefix + "ssm_conv1d.bias", channels));
  }
  ASSIGN_OR_RETURN(mixer.dt_bias, LoadVector(file, prefix + "ssm_dt.bias", s.heads));
  ASSIGN_OR_RETURN(mixer.a_neg, LoadVector(file, prefix + "ssm_a", s.heads));
  ASSIGN_OR_RETURN(mixer.d, LoadVector(file, prefix + "ssm_d", s.heads));
  if (gate != GateOrder::kNoNorm) {
    ASSIGN_OR_RETURN(mixer.norm, LoadVector(file, prefix + "ssm_norm.weight", s.inner()));
  }
  return mixer;
}

}  // namespace cairn::reference
