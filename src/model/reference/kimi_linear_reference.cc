#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/kimi_linear_config.h"
#include "model/reference/architectures.h"
#include "model/reference/reference_frame.h"
#include "model/reference/reference_parts.h"

namespace cairn::reference {
namespace {

struct Kda {
  Matrix q, k, v, f_a, f_b, g_a, g_b, b, out;
  Row conv_q, conv_k, conv_v;  // [width, K]
  Row a_neg;                   // [heads]
  Row dt_bias, norm;           // [width], [d]
};

struct LatentAttention {
  Matrix q, kv_a, out;
  Matrix k_b;  // [heads * latent, head_key]: of each head the transpose of W_kb
  Matrix v_b;  // [heads * head_value, latent]
  Row norm;
};

struct Layer {
  Row mixer_norm, ffn_norm;
  std::optional<Kda> kda;
  std::optional<LatentAttention> attention;
  Ffn ffn;
};

class KimiLinearReference final : public ReferenceModel {
 public:
  static Result<std::unique_ptr<ReferenceModel>> Load(const ModelFile& file);
  Output Run(std::span<const Token> tokens, std::span<const int> rows) const override;

 private:
  Rows RunKda(const Kda& net, const Rows& x, const std::string& tag,
              std::vector<StateTensor>& states) const;
  Rows RunAttention(const LatentAttention& net, const Rows& x, const std::string& tag,
                    std::vector<StateTensor>& states) const;

  KimiLinearConfig config_;
  Frame frame_;
  std::vector<Layer> layers_;
};

ReferenceModel::Output KimiLinearReference::Run(std::span<const Token> tokens,
                                                std::span<const int> rows) const {
  const DecoderConfig& c = config_.decoder;
  std::vector<StateTensor> states;
  Rows x = frame_.Embed(tokens);
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    const std::string tag = LayerTag(static_cast<int>(i));
    const Rows y = RmsNorm(x, layer.mixer_norm, c.norm_eps);
    Add(x, layer.kda.has_value() ? RunKda(*layer.kda, y, tag, states)
                                 : RunAttention(*layer.attention, y, tag, states));
    Add(x, layer.ffn(RmsNorm(x, layer.ffn_norm, c.norm_eps)));
  }
  return frame_.Finish(x, rows, std::move(states));
}

Rows KimiLinearReference::RunKda(const Kda& net, const Rows& x, const std::string& tag,
                                 std::vector<StateTensor>& states) const {
  const int64_t heads = config_.delta.value_heads, d = config_.delta.key_dim;
  const int64_t tokens = x.size();
  const Rows in_q = net.q(x), in_k = net.k(x), in_v = net.v(x);
  const auto convolve = [&](const Row& taps, const Rows& in) {
    return Silu(CausalConv(taps, config_.conv_kernel, /*bias=*/{}, in));
  };
  const Rows q = convolve(net.conv_q, in_q), k = convolve(net.conv_k, in_k),
             v = convolve(net.conv_v, in_v);
  Rows g = net.f_b(net.f_a(x));
  const Rows z = net.g_b(net.g_a(x)), b = net.b(x);
  Rows memory(heads, Row(d * d, 0.0)), o(tokens, Row(heads * d));
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t i = 0; i < heads * d; ++i)
      g[t][i] = std::exp(net.a_neg[i / d] * Softplus(g[t][i] + net.dt_bias[i]));
    for (int64_t h = 0; h < heads; ++h) {
      const Row decay(g[t].begin() + h * d, g[t].begin() + (h + 1) * d);
      DeltaStep(&q[t][h * d], &k[t][h * d], &v[t][h * d], decay, Sigmoid(b[t][h]),
                static_cast<int>(d), memory[h], &o[t][h * d]);
    }
  }
  o = RmsNorm(o, net.norm, config_.decoder.norm_eps);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t i = 0; i < heads * d; ++i) o[t][i] *= Sigmoid(z[t][i]);
  }
  StateTensor delta{tag + "delta", {heads, d, d}, {}};
  for (const Row& s : memory) delta.data.insert(delta.data.end(), s.begin(), s.end());
  states.push_back(ConvState(tag, config_.conv_kernel - 1, {{&in_q, &in_k, &in_v}}));
  states.push_back(std::move(delta));
  return net.out(o);
}

Rows KimiLinearReference::RunAttention(const LatentAttention& net, const Rows& x,
                                       const std::string& tag,
                                       std::vector<StateTensor>& states) const {
  const LatentAttentionSizes& s = config_.latent;
  const int64_t heads = config_.decoder.heads, tokens = x.size();
  const Rows q = net.q(x), kv = net.kv_a(x);
  Rows latent, shared;
  for (const Row& row : kv) {
    latent.push_back(
        RmsNorm(Row(row.begin(), row.begin() + s.latent), net.norm, config_.decoder.norm_eps));
    shared.emplace_back(row.begin() + s.latent, row.end());
  }
  const Rows v = net.v_b(latent);                // [tokens][heads * head_value]
  Rows k(tokens, Row(heads * s.head_key, 0.0));  // [tokens][heads * head_key]
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t r = 0; r < s.latent; ++r) {
        for (int64_t i = 0; i < s.head_key; ++i)
          k[t][h * s.head_key + i] += net.k_b.w[(h * s.latent + r) * s.head_key + i] * latent[t][r];
      }
    }
  }
  Rows o(tokens, Row(heads * s.head_value, 0.0));
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t h = 0; h < heads; ++h) {
      const double* query = &q[t][h * s.query()];
      Row p(t + 1);
      for (int64_t j = 0; j <= t; ++j) {
        for (int i = 0; i < s.head_key; ++i) p[j] += query[i] * k[j][h * s.head_key + i];
        for (int i = 0; i < s.shared; ++i) p[j] += query[s.head_key + i] * shared[j][i];
        p[j] /= std::sqrt(static_cast<double>(s.query()));
      }
      const double max = *std::max_element(p.begin(), p.end());
      double sum = 0;
      for (double& weight : p) sum += weight = std::exp(weight - max);
      for (int64_t j = 0; j <= t; ++j) {
        for (int i = 0; i < s.head_value; ++i)
          o[t][h * s.head_value + i] += p[j] / sum * v[j][h * s.head_value + i];
      }
    }
  }
  states.push_back(KvState(tag + "k", latent, 1, s.latent));
  states.push_back(KvState(tag + "v", shared, 1, s.shared));
  return net.out(o);
}

Result<Kda> LoadKda(const ModelFile& file, const std::string& p, const KimiLinearConfig& c) {
  const int64_t hidden = c.decoder.hidden_size, heads = c.delta.value_heads, d = c.delta.key_dim;
  const int64_t width = heads * d;
  Kda net;
  ASSIGN_OR_RETURN(Qkv qkv, LoadQkv(file, p, width, width, width, hidden));
  net.q = std::move(qkv.q);
  net.k = std::move(qkv.k);
  net.v = std::move(qkv.v);
  ASSIGN_OR_RETURN(net.f_a, LoadMatrix(file, p + "ssm_f_a", d, hidden));
  ASSIGN_OR_RETURN(net.f_b, LoadMatrix(file, p + "ssm_f_b", width, d));
  ASSIGN_OR_RETURN(net.g_a, LoadMatrix(file, p + "ssm_g_a", d, hidden));
  ASSIGN_OR_RETURN(net.g_b, LoadMatrix(file, p + "ssm_g_b", width, d));
  ASSIGN_OR_RETURN(net.b, LoadMatrix(file, p + "ssm_beta", heads, hidden));
  ASSIGN_OR_RETURN(net.out, LoadMatrix(file, p + "attn_output", hidden, width));
  const int64_t taps = width * c.conv_kernel;
  ASSIGN_OR_RETURN(net.conv_q, LoadVector(file, p + "ssm_conv1d_q.weight", taps));
  ASSIGN_OR_RETURN(net.conv_k, LoadVector(file, p + "ssm_conv1d_k.weight", taps));
  ASSIGN_OR_RETURN(net.conv_v, LoadVector(file, p + "ssm_conv1d_v.weight", taps));
  ASSIGN_OR_RETURN(net.a_neg, LoadVector(file, p + "ssm_a", heads));
  ASSIGN_OR_RETURN(net.dt_bias, LoadVector(file, p + "ssm_dt.bias", width));
  ASSIGN_OR_RETURN(net.norm, LoadVector(file, p + "ssm_norm.weight", d));
  return net;
}

Result<LatentAttention> LoadAttention(const ModelFile& file, const std::string& p,
                                      const KimiLinearConfig& c) {
  const LatentAttentionSizes& s = c.latent;
  const int64_t hidden = c.decoder.hidden_size, heads = c.decoder.heads;
  LatentAttention net;
  ASSIGN_OR_RETURN(net.q, LoadMatrix(file, p + "attn_q", heads * s.query(), hidden));
  ASSIGN_OR_RETURN(net.kv_a, LoadMatrix(file, p + "attn_kv_a_mqa", s.row(), hidden));
  ASSIGN_OR_RETURN(net.k_b, LoadMatrix(file, p + "attn_k_b", heads * s.latent, s.head_key));
  ASSIGN_OR_RETURN(net.v_b, LoadMatrix(file, p + "attn_v_b", heads * s.head_value, s.latent));
  ASSIGN_OR_RETURN(net.out, LoadMatrix(file, p + "attn_output", hidden, heads * s.head_value));
  ASSIGN_OR_RETURN(net.norm, LoadVector(file, p + "attn_kv_a_norm.weight", s.latent));
  return net;
}

Result<std::unique_ptr<ReferenceModel>> KimiLinearReference::Load(const ModelFile& file) {
  auto model = std::make_unique<KimiLinearReference>();
  ASSIGN_OR_RETURN(model->config_, ReadKimiLinearConfig(file));
  const DecoderConfig& c = model->config_.decoder;
  ASSIGN_OR_RETURN(model->frame_, LoadFrame(file, c));
  for (int i = 0; i < c.layer_count; ++i) {
    const std::string p = LayerPrefix(i);
    Layer layer;
    ASSIGN_OR_RETURN(layer.mixer_norm, LoadVector(file, p + "attn_norm.weight", c.hidden_size));
    ASSIGN_OR_RETURN(layer.ffn_norm, LoadVector(file, p + "ffn_norm.weight", c.hidden_size));
    if (model->config_.IsAttention(i)) {
      ASSIGN_OR_RETURN(layer.attention, LoadAttention(file, p, model->config_));
    } else {
      ASSIGN_OR_RETURN(layer.kda, LoadKda(file, p, model->config_));
    }
    ASSIGN_OR_RETURN(layer.ffn,
                     LoadFfn(file, p, c.hidden_size, c.ffn_size,
                             model->config_.HasExperts(i) ? model->config_.moe : std::nullopt));
    model->layers_.push_back(std::move(layer));
  }
  return std::unique_ptr<ReferenceModel>(std::move(model));
}

}  // namespace

Result<std::unique_ptr<ReferenceModel>> LoadKimiLinearReference(const ModelFile& file) {
  return KimiLinearReference::Load(file);
}

}  // namespace cairn::reference
