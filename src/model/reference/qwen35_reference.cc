#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/qwen35_config.h"
#include "model/reference/architectures.h"
#include "model/reference/reference_frame.h"
#include "model/reference/reference_parts.h"

namespace cairn::reference {
namespace {

// Value heads may lie in the file tiled over the key heads: head j * key_heads + g of the file is
// head g * (value_heads / key_heads) + j of the checkpoint.
int CheckpointHead(const GatedDeltaShape& shape, int file_head) {
  if (shape.map == DeltaHeadMap::kGrouped) return file_head;
  const int repeat = shape.value_heads / shape.key_heads;
  return file_head % shape.key_heads * repeat + file_head / shape.key_heads;
}

struct DeltaNet {
  Matrix qkv, z, b, a, out;
  Matrix ba;  // Qwen3-Next: of each key head b(r), a(r); then b and a are empty
  Row conv;   // [channels, K]
  Row a_neg, dt_bias, norm;
};

struct Layer {
  Row mixer_norm, ffn_norm;
  std::optional<DeltaNet> delta;
  std::optional<AttentionWeights> attention;  // q: query(d) gate(d) for each head
  Ffn ffn;
};

class Qwen35Reference final : public ReferenceModel {
 public:
  static Result<std::unique_ptr<ReferenceModel>> Load(const ModelFile& file);
  Output Run(std::span<const Token> tokens, std::span<const int> rows) const override;

 private:
  Rows RunDelta(const DeltaNet& net, const Rows& x, const std::string& tag,
                std::vector<StateTensor>& states) const;
  Rows DeltaRule(const Rows& qkv, const Rows& g, const Rows& beta, Rows& memory) const;
  Rows RunAttention(const AttentionWeights& net, const Rows& x, const std::string& tag,
                    std::vector<StateTensor>& states) const;
  StateTensor ConvState(const Rows& qkv, const std::string& tag) const;
  StateTensor DeltaState(const Rows& memory, const std::string& tag) const;

  Qwen35Config config_;
  std::vector<double> inv_freq_;
  Frame frame_;
  std::vector<Layer> layers_;
};

ReferenceModel::Output Qwen35Reference::Run(std::span<const Token> tokens,
                                            std::span<const int> rows) const {
  const DecoderConfig& c = config_.decoder;
  std::vector<StateTensor> states;
  Rows x = frame_.Embed(tokens);
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    const std::string tag = LayerTag(static_cast<int>(i));
    const Rows y = RmsNorm(x, layer.mixer_norm, c.norm_eps);
    Add(x, layer.delta.has_value() ? RunDelta(*layer.delta, y, tag, states)
                                   : RunAttention(*layer.attention, y, tag, states));
    Add(x, layer.ffn(RmsNorm(x, layer.ffn_norm, c.norm_eps)));
  }
  return frame_.Finish(x, rows, std::move(states));
}

Rows Qwen35Reference::RunDelta(const DeltaNet& net, const Rows& x, const std::string& tag,
                               std::vector<StateTensor>& states) const {
  const GatedDeltaShape& s = config_.delta;
  const Rows qkv = net.qkv(x), z = net.z(x);
  Rows g = net.a(x), beta = net.b(x);
  if (net.ba.n > 0) {
    const Rows ba = net.ba(x);
    const int r = s.value_heads / s.key_heads;
    for (size_t t = 0; t < x.size(); ++t) {
      g[t].resize(s.value_heads);
      beta[t].resize(s.value_heads);
      for (int h = 0; h < s.value_heads; ++h) {
        beta[t][h] = ba[t][h / r * 2 * r + h % r];
        g[t][h] = ba[t][h / r * 2 * r + r + h % r];
      }
    }
  }
  for (size_t t = 0; t < x.size(); ++t) {
    for (int h = 0; h < s.value_heads; ++h) {
      g[t][h] = std::exp(net.a_neg[h] * Softplus(g[t][h] + net.dt_bias[h]));
      beta[t][h] = Sigmoid(beta[t][h]);
    }
  }
  Rows memory(s.value_heads, Row(int64_t{s.value_dim} * s.key_dim, 0.0));  // [Hv][dv, dk]
  const Rows mixed = Silu(CausalConv(net.conv, config_.conv_kernel, /*bias=*/{}, qkv));
  Rows o = DeltaRule(mixed, g, beta, memory);
  o = RmsNorm(o, net.norm, config_.decoder.norm_eps);
  for (size_t t = 0; t < x.size(); ++t) {
    for (size_t i = 0; i < o[t].size(); ++i) o[t][i] *= Silu(z[t][i]);
  }
  states.push_back(ConvState(qkv, tag));
  states.push_back(DeltaState(memory, tag));
  return net.out(o);
}

Rows Qwen35Reference::DeltaRule(const Rows& qkv, const Rows& g, const Rows& beta,
                                Rows& memory) const {
  const GatedDeltaShape& s = config_.delta;
  const int dk = s.key_dim, dv = s.value_dim;
  Rows out(qkv.size(), Row(int64_t{s.value_heads} * dv));
  for (size_t t = 0; t < qkv.size(); ++t) {
    for (int h = 0; h < s.value_heads; ++h) {
      const int key_head = CheckpointHead(s, h) / (s.value_heads / s.key_heads);
      const double* q = &qkv[t][int64_t{key_head} * dk];
      const double* k = &qkv[t][int64_t{s.key_heads + key_head} * dk];
      const double* v = &qkv[t][int64_t{2} * s.key_heads * dk + int64_t{h} * dv];
      DeltaStep(q, k, v, Row(dk, g[t][h]), beta[t][h], dv, memory[h], &out[t][int64_t{h} * dv]);
    }
  }
  return out;
}

Rows Qwen35Reference::RunAttention(const AttentionWeights& net, const Rows& x,
                                   const std::string& tag, std::vector<StateTensor>& states) const {
  const DecoderConfig& c = config_.decoder;
  const int64_t d = c.head_dim;
  const Rows q_gate = net.q(x);
  Rows q(x.size()), gate(x.size());
  for (size_t t = 0; t < x.size(); ++t) {
    for (int h = 0; h < c.heads; ++h) {
      const auto at = q_gate[t].begin() + 2 * h * d;
      q[t].insert(q[t].end(), at, at + d);
      gate[t].insert(gate[t].end(), at + d, at + 2 * d);
    }
  }
  q = RmsNorm(q, net.q_norm, c.norm_eps);
  Rows k = RmsNorm(net.k(x), net.k_norm, c.norm_eps);
  const Rows v = net.v(x);
  Rotate(q, inv_freq_, d, /*half_split=*/true);
  Rotate(k, inv_freq_, d, /*half_split=*/true);
  Rows o = CausalAttention(q, k, v, c.heads, c.kv_heads, d);
  for (size_t t = 0; t < x.size(); ++t) {
    for (size_t i = 0; i < o[t].size(); ++i) o[t][i] *= Sigmoid(gate[t][i]);
  }
  states.push_back(KvState(tag + "k", k, c.kv_heads, d));
  states.push_back(KvState(tag + "v", v, c.kv_heads, d));
  return net.out(o);
}

StateTensor Qwen35Reference::ConvState(const Rows& qkv, const std::string& tag) const {
  const GatedDeltaShape& s = config_.delta;
  const int64_t v_begin = int64_t{2} * s.key_heads * s.key_dim, channels = qkv[0].size();
  Rows ordered = qkv;  // value heads in the checkpoint's order
  for (size_t t = 0; t < qkv.size(); ++t) {
    for (int64_t c = v_begin; c < channels; ++c) {
      const int head = static_cast<int>((c - v_begin) / s.value_dim);
      const int64_t to = int64_t{CheckpointHead(s, head)} * s.value_dim;
      ordered[t][v_begin + to + (c - v_begin) % s.value_dim] = qkv[t][c];
    }
  }
  return reference::ConvState(tag, config_.conv_kernel - 1, {{&ordered}});
}

StateTensor Qwen35Reference::DeltaState(const Rows& memory, const std::string& tag) const {
  const GatedDeltaShape& s = config_.delta;
  const int64_t head_size = int64_t{s.value_dim} * s.key_dim;
  StateTensor out{tag + "delta",
                  {s.value_heads, s.value_dim, s.key_dim},
                  std::vector<float>(s.value_heads * head_size)};
  for (int h = 0; h < s.value_heads; ++h) {
    float* to = &out.data[CheckpointHead(s, h) * head_size];
    for (int64_t i = 0; i < head_size; ++i) to[i] = static_cast<float>(memory[h][i]);
  }
  return out;
}

// Rows of q, k, v and z of one key head after the other.
void SplitByKeyHead(const Matrix& all, const GatedDeltaShape& s, DeltaNet& net) {
  const int64_t values = all.n / s.key_heads / 2 - s.key_dim;
  for (Matrix* part : {&net.qkv, &net.z}) part->k = all.k;
  const auto append = [&](Matrix& part, int64_t begin, int64_t count) {
    for (int64_t h = 0; h < s.key_heads; ++h) {
      const auto from = all.w.begin() + (h * (all.n / s.key_heads) + begin) * all.k;
      part.w.insert(part.w.end(), from, from + count * all.k);
    }
    part.n += count * s.key_heads;
  };
  append(net.qkv, 0, s.key_dim);
  append(net.qkv, s.key_dim, s.key_dim);
  append(net.qkv, 2 * s.key_dim, values);
  append(net.z, 2 * s.key_dim + values, values);
}

Result<DeltaNet> LoadDelta(const ModelFile& file, const std::string& p, const Qwen35Config& c) {
  const GatedDeltaShape& s = c.delta;
  const int64_t hidden = c.decoder.hidden_size;
  const int64_t value_width = int64_t{s.value_heads} * s.value_dim;
  const int64_t channels = int64_t{2} * s.key_heads * s.key_dim + value_width;
  DeltaNet net;
  if (file.HasTensor(p + "ssm_in.weight")) {
    ASSIGN_OR_RETURN(const Matrix all,
                     LoadMatrix(file, p + "ssm_in", channels + value_width, hidden));
    SplitByKeyHead(all, s, net);
  } else {
    ASSIGN_OR_RETURN(net.qkv, LoadMatrix(file, p + "attn_qkv", channels, hidden));
    ASSIGN_OR_RETURN(net.z, LoadMatrix(file, p + "attn_gate", value_width, hidden));
  }
  if (c.gate_rows == GateRows::kByKeyHead) {
    ASSIGN_OR_RETURN(net.ba, LoadMatrix(file, p + "ssm_ba", 2 * s.value_heads, hidden));
  } else {
    ASSIGN_OR_RETURN(net.b, LoadMatrix(file, p + "ssm_beta", s.value_heads, hidden));
    ASSIGN_OR_RETURN(net.a, LoadMatrix(file, p + "ssm_alpha", s.value_heads, hidden));
  }
  ASSIGN_OR_RETURN(net.out, LoadMatrix(file, p + "ssm_out", hidden, value_width));
  ASSIGN_OR_RETURN(net.conv, LoadVector(file, p + "ssm_conv1d.weight", channels * c.conv_kernel));
  ASSIGN_OR_RETURN(net.a_neg, LoadVector(file, p + "ssm_a", s.value_heads));
  ASSIGN_OR_RETURN(net.dt_bias, LoadVector(file, p + "ssm_dt.bias", s.value_heads));
  ASSIGN_OR_RETURN(net.norm, LoadVector(file, p + "ssm_norm.weight", s.value_dim));
  return net;
}

Result<std::unique_ptr<ReferenceModel>> Qwen35Reference::Load(const ModelFile& file) {
  auto model = std::make_unique<Qwen35Reference>();
  ASSIGN_OR_RETURN(model->config_, ReadQwen35Config(file));
  const DecoderConfig& c = model->config_.decoder;
  model->inv_freq_ = MakeRotary(c.rope).inv_freq;
  ASSIGN_OR_RETURN(model->frame_, LoadFrame(file, c));
  for (int i = 0; i < c.layer_count; ++i) {
    const std::string p = LayerPrefix(i);
    Layer layer;
    ASSIGN_OR_RETURN(layer.mixer_norm, LoadVector(file, p + "attn_norm.weight", c.hidden_size));
    ASSIGN_OR_RETURN(layer.ffn_norm,
                     LoadVector(file, p + "post_attention_norm.weight", c.hidden_size));
    ASSIGN_OR_RETURN(layer.ffn, LoadFfn(file, p, c.hidden_size, c.ffn_size, model->config_.moe));
    if (model->config_.IsAttention(i)) {
      ASSIGN_OR_RETURN(layer.attention, LoadAttention(file, p, c, /*query_parts=*/2));
    } else {
      ASSIGN_OR_RETURN(layer.delta, LoadDelta(file, p, model->config_));
    }
    model->layers_.push_back(std::move(layer));
  }
  return std::unique_ptr<ReferenceModel>(std::move(model));
}

}  // namespace

Result<std::unique_ptr<ReferenceModel>> LoadQwen35Reference(const ModelFile& file) {
  return Qwen35Reference::Load(file);
}

}  // namespace cairn::reference
