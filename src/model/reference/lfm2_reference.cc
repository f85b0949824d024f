#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/lfm2_config.h"
#include "model/reference/architectures.h"
#include "model/reference/reference_frame.h"
#include "model/reference/reference_parts.h"

namespace cairn::reference {
namespace {

struct Conv {
  Matrix in, out;
  Row taps;  // [channels, K]
  Row bias;  // or empty
};

struct Layer {
  Row mixer_norm, ffn_norm;
  std::optional<Conv> conv;
  std::optional<AttentionWeights> attention;
  Ffn ffn;
};

class Lfm2Reference final : public ReferenceModel {
 public:
  static Result<std::unique_ptr<ReferenceModel>> Load(const ModelFile& file);
  Output Run(std::span<const Token> tokens, std::span<const int> rows) const override;

 private:
  Rows RunConv(const Conv& net, const Rows& x, const std::string& tag,
               std::vector<StateTensor>& states) const;
  Rows RunAttention(const AttentionWeights& net, const Rows& x, const std::string& tag,
                    std::vector<StateTensor>& states) const;

  Lfm2Config config_;
  Rotary rotary_;
  Frame frame_;
  std::vector<Layer> layers_;
};

ReferenceModel::Output Lfm2Reference::Run(std::span<const Token> tokens,
                                          std::span<const int> rows) const {
  const DecoderConfig& c = config_.decoder;
  std::vector<StateTensor> states;
  Rows x = frame_.Embed(tokens);
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    const std::string tag = LayerTag(static_cast<int>(i));
    const Rows y = RmsNorm(x, layer.mixer_norm, c.norm_eps);
    Add(x, layer.conv.has_value() ? RunConv(*layer.conv, y, tag, states)
                                  : RunAttention(*layer.attention, y, tag, states));
    Add(x, layer.ffn(RmsNorm(x, layer.ffn_norm, c.norm_eps)));
  }
  return frame_.Finish(x, rows, std::move(states));
}

// B, C, u = split(W_in x); W_out (C * conv(B * u)).
Rows Lfm2Reference::RunConv(const Conv& net, const Rows& x, const std::string& tag,
                            std::vector<StateTensor>& states) const {
  const int64_t channels = config_.decoder.hidden_size, tokens = x.size();
  const Rows bcu = net.in(x);
  Rows s(tokens, Row(channels));
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t c = 0; c < channels; ++c) s[t][c] = bcu[t][c] * bcu[t][2 * channels + c];
  }
  Rows y = CausalConv(net.taps, config_.conv_kernel, net.bias, s);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t c = 0; c < channels; ++c) y[t][c] *= bcu[t][channels + c];
  }
  states.push_back(ConvState(tag, config_.conv_kernel - 1, {{&s}}));
  return net.out(y);
}

Rows Lfm2Reference::RunAttention(const AttentionWeights& net, const Rows& x, const std::string& tag,
                                 std::vector<StateTensor>& states) const {
  const DecoderConfig& c = config_.decoder;
  Rows q = RmsNorm(net.q(x), net.q_norm, c.norm_eps);
  Rows k = RmsNorm(net.k(x), net.k_norm, c.norm_eps);
  const Rows v = net.v(x);
  Rotate(q, rotary_.inv_freq, c.head_dim, /*half_split=*/true, rotary_.magnitude);
  Rotate(k, rotary_.inv_freq, c.head_dim, /*half_split=*/true, rotary_.magnitude);
  states.push_back(KvState(tag + "k", k, c.kv_heads, c.head_dim));
  states.push_back(KvState(tag + "v", v, c.kv_heads, c.head_dim));
  return net.out(CausalAttention(q, k, v, c.heads, c.kv_heads, c.head_dim));
}

Result<Conv> LoadConv(const ModelFile& file, const std::string& p, const Lfm2Config& config) {
  const int64_t hidden = config.decoder.hidden_size;
  Conv net;
  ASSIGN_OR_RETURN(net.in, LoadMatrix(file, p + "shortconv.in_proj", 3 * hidden, hidden));
  ASSIGN_OR_RETURN(net.out, LoadMatrix(file, p + "shortconv.out_proj", hidden, hidden));
  ASSIGN_OR_RETURN(net.taps,
                   LoadVector(file, p + "shortconv.conv.weight", hidden * config.conv_kernel));
  if (file.HasTensor(p + "shortconv.conv.bias")) {
    ASSIGN_OR_RETURN(net.bias, LoadVector(file, p + "shortconv.conv.bias", hidden));
  }
  return net;
}

Result<std::unique_ptr<ReferenceModel>> Lfm2Reference::Load(const ModelFile& file) {
  auto model = std::make_unique<Lfm2Reference>();
  ASSIGN_OR_RETURN(model->config_, ReadLfm2Config(file));
  const DecoderConfig& c = model->config_.decoder;
  ASSIGN_OR_RETURN(model->rotary_, LoadRotary(file, c.rope, c.trained_context_length));
  ASSIGN_OR_RETURN(model->frame_, LoadFrame(file, c, kLfm2FinalNorm));
  for (int i = 0; i < c.layer_count; ++i) {
    const std::string p = LayerPrefix(i);
    Layer layer;
    ASSIGN_OR_RETURN(layer.mixer_norm, LoadVector(file, p + "attn_norm.weight", c.hidden_size));
    ASSIGN_OR_RETURN(layer.ffn_norm, LoadVector(file, p + "ffn_norm.weight", c.hidden_size));
    if (model->config_.IsAttention(i)) {
      ASSIGN_OR_RETURN(layer.attention, LoadAttention(file, p, c));
    } else {
      ASSIGN_OR_RETURN(layer.conv, LoadConv(file, p, model->config_));
    }
    ASSIGN_OR_RETURN(layer.ffn,
                     LoadFfn(file, p, c.hidden_size, c.ffn_size,
                             model->config_.HasExperts(i) ? model->config_.moe : std::nullopt));
    model->layers_.push_back(std::move(layer));
  }
  return std::unique_ptr<ReferenceModel>(std::move(model));
}

}  // namespace

Result<std::unique_ptr<ReferenceModel>> LoadLfm2Reference(const ModelFile& file) {
  return Lfm2Reference::Load(file);
}

}  // namespace cairn::reference
