#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "model/gemma3_config.h"
#include "model/reference/architectures.h"
#include "model/reference/reference_frame.h"
#include "model/reference/reference_parts.h"

namespace cairn::reference {
namespace {

struct Layer {
  Row norm1, norm2, norm3, norm4;
  AttentionWeights attention;
  SwiGlu ffn;
};

class Gemma3Reference final : public ReferenceModel {
 public:
  static Result<std::unique_ptr<ReferenceModel>> Load(const ModelFile& file);
  Output Run(std::span<const Token> tokens, std::span<const int> rows) const override;

 private:
  Rows RunAttention(int index, const Rows& x, std::vector<StateTensor>& states) const;

  Gemma3Config config_;
  Rotary global_, local_;
  Frame frame_;
  std::vector<Layer> layers_;
};

// h = x + norm2(attention(norm1(x))); out = h + norm4(mlp(norm3(h))).
ReferenceModel::Output Gemma3Reference::Run(std::span<const Token> tokens,
                                            std::span<const int> rows) const {
  const DecoderConfig& c = config_.decoder;
  std::vector<StateTensor> states;
  Rows x = frame_.Embed(tokens);
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    const Rows a = RunAttention(static_cast<int>(i), RmsNorm(x, layer.norm1, c.norm_eps), states);
    Add(x, RmsNorm(a, layer.norm2, c.norm_eps));
    Add(x, RmsNorm(layer.ffn(RmsNorm(x, layer.norm3, c.norm_eps)), layer.norm4, c.norm_eps));
  }
  return frame_.Finish(x, rows, std::move(states));
}

Rows Gemma3Reference::RunAttention(int index, const Rows& x,
                                   std::vector<StateTensor>& states) const {
  const DecoderConfig& c = config_.decoder;
  const Layer& layer = layers_[index];
  const bool is_global = config_.IsGlobal(index);
  const Rotary& rotary = is_global ? global_ : local_;
  const std::string tag = LayerTag(index);
  const AttentionWeights& net = layer.attention;
  Rows q = RmsNorm(net.q(x), net.q_norm, c.norm_eps);
  Rows k = RmsNorm(net.k(x), net.k_norm, c.norm_eps);
  const Rows v = net.v(x);
  Rotate(q, rotary.inv_freq, c.head_dim, /*half_split=*/true);
  Rotate(k, rotary.inv_freq, c.head_dim, /*half_split=*/true);
  states.push_back(KvState(tag + "k", k, c.kv_heads, c.head_dim));
  states.push_back(KvState(tag + "v", v, c.kv_heads, c.head_dim));
  return net.out(CausalAttention(q, k, v, c.heads, c.kv_heads, c.head_dim,
                                 c.attention_scale.value_or(0),
                                 is_global ? INT64_MAX : config_.window));
}

Result<std::unique_ptr<ReferenceModel>> Gemma3Reference::Load(const ModelFile& file) {
  auto model = std::make_unique<Gemma3Reference>();
  ASSIGN_OR_RETURN(model->config_, ReadGemma3Config(file));
  const DecoderConfig& c = model->config_.decoder;
  ASSIGN_OR_RETURN(model->global_, LoadRotary(file, c.rope, c.trained_context_length));
  model->local_ = MakeRotary(model->config_.local_rope);
  ASSIGN_OR_RETURN(model->frame_, LoadFrame(file, c));
  for (int i = 0; i < c.layer_count; ++i) {
    const std::string p = LayerPrefix(i);
    Layer layer;
    ASSIGN_OR_RETURN(layer.norm1, LoadVector(file, p + "attn_norm.weight", c.hidden_size));
    ASSIGN_OR_RETURN(layer.norm2,
                     LoadVector(file, p + "post_attention_norm.weight", c.hidden_size));
    ASSIGN_OR_RETURN(layer.norm3, LoadVector(file, p + "ffn_norm.weight", c.hidden_size));
    ASSIGN_OR_RETURN(layer.norm4, LoadVector(file, p + "post_ffw_norm.weight", c.hidden_size));
    ASSIGN_OR_RETURN(layer.attention, LoadAttention(file, p, c));
    ASSIGN_OR_RETURN(layer.ffn, LoadSwiGlu(file, p, c.hidden_size, c.ffn_size));
    layer.ffn.activation = Gelu;
    model->layers_.push_back(std::move(layer));
  }
  return std::unique_ptr<ReferenceModel>(std::move(model));
}

}  // namespace

Result<std::unique_ptr<ReferenceModel>> LoadGemma3Reference(const ModelFile& file) {
  return Gemma3Reference::Load(file);
}

}  // namespace cairn::reference
