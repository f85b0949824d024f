#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/lfm2_config.h"
#include "model/reference/architectures.h"
#include "model/reference/moe_reference.h"
#include "model/reference/reference_math.h"

namespace cairn::reference {
namespace {

struct Conv {
  Matrix in, out;
  Row taps;  // [channels, K]
  Row bias;  // or empty
};

struct Attention {
  Matrix q, k, v, out;
  Row q_norm, k_norm;
};

struct Layer {
  Row mixer_norm, ffn_norm;
  std::optional<Conv> conv;
  std::optional<Attention> attention;
  SwiGlu ffn;
  std::optional<Moe> moe;
};

class Lfm2Reference final : public ReferenceModel {
 public:
  static Result<std::unique_ptr<ReferenceModel>> Load(const ModelFile& file);
  Output Run(std::span<const Token> tokens, std::span<const int> rows) const override;

 private:
  Rows RunConv(const Conv& net, const Rows& x, const std::string& tag,
               std::vector<StateTensor>& states) const;
  Rows RunAttention(const Attention& net, const Rows& x, const std::string& tag,
                    std::vector<StateTensor>& states) const;

  Lfm2Config config_;
  Rotary rotary_;
  Matrix embedding_, head_;
  Row final_norm_;
  std::vector<Layer> layers_;
};

ReferenceModel::Output Lfm2Reference::Run(std::span<const Token> tokens,
                                          std::span<const int> rows) const {
  const DecoderConfig& c = config_.decoder;
  Output output;
  Rows x;
  for (const Token token : tokens) {
    const auto row = embedding_.w.begin() + int64_t{token} * c.hidden_size;
    x.emplace_back(row, row + c.hidden_size);
  }
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    const std::string tag = "layer" + std::to_string(i) + "_";
    const Rows y = RmsNorm(x, layer.mixer_norm, c.norm_eps);
    Add(x, layer.conv.has_value() ? RunConv(*layer.conv, y, tag, output.states)
                                  : RunAttention(*layer.attention, y, tag, output.states));
    const Rows z = RmsNorm(x, layer.ffn_norm, c.norm_eps);
    Add(x, layer.moe.has_value() ? (*layer.moe)(z) : layer.ffn(z));
  }
  for (const int row : rows) {
    output.logits.push_back(head_(RmsNorm(x[row], final_norm_, c.norm_eps)));
  }
  return output;
}

// B, C, u = split(W_in x); W_out (C * conv(B * u)).
Rows Lfm2Reference::RunConv(const Conv& net, const Rows& x, const std::string& tag,
                            std::vector<StateTensor>& states) const {
  const int64_t channels = config_.decoder.hidden_size, taps = config_.conv_kernel;
  const int64_t tokens = x.size();
  const Rows bcu = net.in(x);
  Rows s(tokens, Row(channels)), y = s;
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t c = 0; c < channels; ++c) {
      s[t][c] = bcu[t][c] * bcu[t][2 * channels + c];
      double sum = net.bias.empty() ? 0.0 : net.bias[c];
      for (int64_t j = 0; j < taps; ++j) {
        const int64_t source = t - taps + 1 + j;
        if (source >= 0) sum += net.taps[c * taps + j] * s[source][c];
      }
      y[t][c] = bcu[t][channels + c] * sum;
    }
  }
  StateTensor state{tag + "conv", {taps - 1, channels}, {}};
  for (int64_t t = tokens - taps + 1; t < tokens; ++t) {
    for (int64_t c = 0; c < channels; ++c)
      state.data.push_back(t < 0 ? 0.0f : static_cast<float>(s[t][c]));
  }
  states.push_back(std::move(state));
  return net.out(y);
}

Rows Lfm2Reference::RunAttention(const Attention& net, const Rows& x, const std::string& tag,
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

Result<Attention> LoadAttention(const ModelFile& file, const std::string& p,
                                const DecoderConfig& c) {
  const int64_t q_width = int64_t{c.heads} * c.head_dim,
                kv_width = int64_t{c.kv_heads} * c.head_dim;
  Attention net;
  ASSIGN_OR_RETURN(net.q, LoadMatrix(file, p + "attn_q", q_width, c.hidden_size));
  ASSIGN_OR_RETURN(net.k, LoadMatrix(file, p + "attn_k", kv_width, c.hidden_size));
  ASSIGN_OR_RETURN(net.v, LoadMatrix(file, p + "attn_v", kv_width, c.hidden_size));
  ASSIGN_OR_RETURN(net.out, LoadMatrix(file, p + "attn_output", c.hidden_size, q_width));
  ASSIGN_OR_RETURN(net.q_norm, LoadVector(file, p + "attn_q_norm.weight", c.head_dim));
  ASSIGN_OR_RETURN(net.k_norm, LoadVector(file, p + "attn_k_norm.weight", c.head_dim));
  return net;
}

Result<std::unique_ptr<ReferenceModel>> Lfm2Reference::Load(const ModelFile& file) {
  auto model = std::make_unique<Lfm2Reference>();
  ASSIGN_OR_RETURN(model->config_, ReadLfm2Config(file));
  const DecoderConfig& c = model->config_.decoder;
  ASSIGN_OR_RETURN(model->rotary_, LoadRotary(file, c.rope, c.trained_context_length));
  ASSIGN_OR_RETURN(model->embedding_, LoadMatrix(file, "token_embd", c.vocab_size, c.hidden_size));
  ASSIGN_OR_RETURN(model->head_,
                   LoadMatrix(file, c.tied ? "token_embd" : "output", c.vocab_size, c.hidden_size));
  ASSIGN_OR_RETURN(model->final_norm_, LoadVector(file, kLfm2FinalNorm, c.hidden_size));
  for (int i = 0; i < c.layer_count; ++i) {
    const std::string p = "blk." + std::to_string(i) + ".";
    Layer layer;
    ASSIGN_OR_RETURN(layer.mixer_norm, LoadVector(file, p + "attn_norm.weight", c.hidden_size));
    ASSIGN_OR_RETURN(layer.ffn_norm, LoadVector(file, p + "ffn_norm.weight", c.hidden_size));
    if (model->config_.IsAttention(i)) {
      ASSIGN_OR_RETURN(layer.attention, LoadAttention(file, p, c));
    } else {
      ASSIGN_OR_RETURN(layer.conv, LoadConv(file, p, model->config_));
    }
    if (model->config_.HasExperts(i)) {
      ASSIGN_OR_RETURN(layer.moe, LoadMoe(file, p, c.hidden_size, *model->config_.moe));
    } else {
      ASSIGN_OR_RETURN(layer.ffn, LoadSwiGlu(file, p, c.hidden_size, c.ffn_size));
    }
    model->layers_.push_back(std::move(layer));
  }
  return std::unique_ptr<ReferenceModel>(std::move(model));
}

}  // namespace

Result<std::unique_ptr<ReferenceModel>> LoadLfm2Reference(const ModelFile& file) {
  return Lfm2Reference::Load(file);
}

}  // namespace cairn::reference
