#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "model/gemma3_config.h"
#include "model/reference/architectures.h"
#include "model/reference/reference_math.h"

namespace cairn::reference {
namespace {

struct Layer {
  Row norm1, norm2, norm3, norm4;
  Matrix q, k, v, out;
  Row q_norm, k_norm;
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
  Matrix embedding_, head_;
  Row final_norm_;
  std::vector<Layer> layers_;
};

// h = x + norm2(attention(norm1(x))); out = h + norm4(mlp(norm3(h))).
ReferenceModel::Output Gemma3Reference::Run(std::span<const Token> tokens,
                                            std::span<const int> rows) const {
  const DecoderConfig& c = config_.decoder;
  Output output;
  Rows x;
  for (const Token token : tokens) {
    const auto row = embedding_.w.begin() + int64_t{token} * c.hidden_size;
    x.emplace_back(row, row + c.hidden_size);
    for (double& value : x.back()) value *= std::sqrt(static_cast<double>(c.hidden_size));
  }
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    const Rows a =
        RunAttention(static_cast<int>(i), RmsNorm(x, layer.norm1, c.norm_eps), output.states);
    Add(x, RmsNorm(a, layer.norm2, c.norm_eps));
    Add(x, RmsNorm(layer.ffn(RmsNorm(x, layer.norm3, c.norm_eps)), layer.norm4, c.norm_eps));
  }
  for (const int row : rows) {
    output.logits.push_back(head_(RmsNorm(x[row], final_norm_, c.norm_eps)));
  }
  return output;
}

Rows Gemma3Reference::RunAttention(int index, const Rows& x,
                                   std::vector<StateTensor>& states) const {
  const DecoderConfig& c = config_.decoder;
  const Layer& layer = layers_[index];
  const bool is_global = (index + 1) % config_.global_interval == 0;
  const Rotary& rotary = is_global ? global_ : local_;
  const std::string tag = "layer" + std::to_string(index) + "_";
  Rows q = RmsNorm(layer.q(x), layer.q_norm, c.norm_eps);
  Rows k = RmsNorm(layer.k(x), layer.k_norm, c.norm_eps);
  const Rows v = layer.v(x);
  Rotate(q, rotary.inv_freq, c.head_dim, /*half_split=*/true);
  Rotate(k, rotary.inv_freq, c.head_dim, /*half_split=*/true);
  states.push_back(KvState(tag + "k", k, c.kv_heads, c.head_dim));
  states.push_back(KvState(tag + "v", v, c.kv_heads, c.head_dim));
  return layer.out(CausalAttention(q, k, v, c.heads, c.kv_heads, c.head_dim,
                                   c.attention_scale.value_or(0),
                                   is_global ? INT64_MAX : config_.window));
}

Result<std::unique_ptr<ReferenceModel>> Gemma3Reference::Load(const ModelFile& file) {
  auto model = std::make_unique<Gemma3Reference>();
  ASSIGN_OR_RETURN(model->config_, ReadGemma3Config(file));
  const DecoderConfig& c = model->config_.decoder;
  ASSIGN_OR_RETURN(model->global_, LoadRotary(file, c.rope, c.trained_context_length));
  model->local_ = MakeRotary(model->config_.local_rope);
  ASSIGN_OR_RETURN(model->embedding_, LoadMatrix(file, "token_embd", c.vocab_size, c.hidden_size));
  ASSIGN_OR_RETURN(model->head_,
                   LoadMatrix(file, c.tied ? "token_embd" : "output", c.vocab_size, c.hidden_size));
  ASSIGN_OR_RETURN(model->final_norm_, LoadVector(file, "output_norm.weight", c.hidden_size));
  const int64_t q_width = int64_t{c.heads} * c.head_dim,
                kv_width = int64_t{c.kv_heads} * c.head_dim;
  for (int i = 0; i < c.layer_count; ++i) {
    const std::string p = "blk." + std::to_string(i) + ".";
    Layer layer;
    ASSIGN_OR_RETURN(layer.norm1, LoadVector(file, p + "attn_norm.weight", c.hidden_size));
    ASSIGN_OR_RETURN(layer.norm2,
                     LoadVector(file, p + "post_attention_norm.weight", c.hidden_size));
    ASSIGN_OR_RETURN(layer.norm3, LoadVector(file, p + "ffn_norm.weight", c.hidden_size));
    ASSIGN_OR_RETURN(layer.norm4, LoadVector(file, p + "post_ffw_norm.weight", c.hidden_size));
    ASSIGN_OR_RETURN(layer.q, LoadMatrix(file, p + "attn_q", q_width, c.hidden_size));
    ASSIGN_OR_RETURN(layer.k, LoadMatrix(file, p + "attn_k", kv_width, c.hidden_size));
    ASSIGN_OR_RETURN(layer.v, LoadMatrix(file, p + "attn_v", kv_width, c.hidden_size));
    ASSIGN_OR_RETURN(layer.out, LoadMatrix(file, p + "attn_output", c.hidden_size, q_width));
    ASSIGN_OR_RETURN(layer.q_norm, LoadVector(file, p + "attn_q_norm.weight", c.head_dim));
    ASSIGN_OR_RETURN(layer.k_norm, LoadVector(file, p + "attn_k_norm.weight", c.head_dim));
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
