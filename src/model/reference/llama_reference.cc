#include <string>
#include <utility>
#include <vector>

#include "model/reference/architectures.h"
#include "model/reference/reference_math.h"

namespace cairn::reference {
namespace {

struct Layer {
  Row attention_norm, ffn_norm;
  Matrix q, k, v, out;
  SwiGlu ffn;
};

class LlamaReference final : public ReferenceModel {
 public:
  static Result<std::unique_ptr<ReferenceModel>> Load(const ModelFile& file);
  Output Run(std::span<const Token> tokens, std::span<const int> rows) const override;

 private:
  DecoderConfig config_;
  std::vector<double> inv_freq_;
  Matrix embedding_, head_;
  Row final_norm_;
  std::vector<Layer> layers_;
};

// The file keeps the pairs of the rotation side by side; the checkpoint keeps them half a head
// apart.
Rows HalfSplit(const Rows& x, int64_t d) {
  Rows y = x;
  for (size_t t = 0; t < x.size(); ++t) {
    for (size_t head = 0; head < x[t].size(); head += d) {
      for (int64_t i = 0; i < d / 2; ++i) {
        y[t][head + i] = x[t][head + 2 * i];
        y[t][head + d / 2 + i] = x[t][head + 2 * i + 1];
      }
    }
  }
  return y;
}

ReferenceModel::Output LlamaReference::Run(std::span<const Token> tokens,
                                           std::span<const int> rows) const {
  const DecoderConfig& c = config_;
  Output output;
  Rows x;
  for (const Token token : tokens) {
    const auto row = embedding_.w.begin() + int64_t{token} * c.hidden_size;
    x.emplace_back(row, row + c.hidden_size);
  }
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    const std::string tag = "layer" + std::to_string(i) + "_";
    const Rows y = RmsNorm(x, layer.attention_norm, c.norm_eps);
    Rows q = layer.q(y), k = layer.k(y);
    const Rows v = layer.v(y);
    Rotate(q, inv_freq_, c.head_dim, /*half_split=*/false);
    Rotate(k, inv_freq_, c.head_dim, /*half_split=*/false);
    Add(x, layer.out(CausalAttention(q, k, v, c.heads, c.kv_heads, c.head_dim)));
    Add(x, layer.ffn(RmsNorm(x, layer.ffn_norm, c.norm_eps)));
    output.states.push_back(KvState(tag + "k", HalfSplit(k, c.head_dim), c.kv_heads, c.head_dim));
    output.states.push_back(KvState(tag + "v", v, c.kv_heads, c.head_dim));
  }
  for (const int row : rows) {
    output.logits.push_back(head_(RmsNorm(x[row], final_norm_, c.norm_eps)));
  }
  return output;
}

Result<std::unique_ptr<ReferenceModel>> LlamaReference::Load(const ModelFile& file) {
  auto model = std::make_unique<LlamaReference>();
  ASSIGN_OR_RETURN(model->config_, ReadDecoderConfig(file, "llama"));
  const DecoderConfig& c = model->config_;
  model->inv_freq_ = Frequencies(c);
  if (file.HasTensor("rope_freqs.weight")) {
    ASSIGN_OR_RETURN(const Row factors, LoadVector(file, "rope_freqs.weight", c.rotary_dims / 2));
    for (size_t i = 0; i < factors.size(); ++i) model->inv_freq_[i] /= factors[i];
  }
  ASSIGN_OR_RETURN(model->embedding_, LoadMatrix(file, "token_embd", c.vocab_size, c.hidden_size));
  ASSIGN_OR_RETURN(model->head_,
                   LoadMatrix(file, c.tied ? "token_embd" : "output", c.vocab_size, c.hidden_size));
  ASSIGN_OR_RETURN(model->final_norm_, LoadVector(file, "output_norm.weight", c.hidden_size));
  const int64_t q_width = int64_t{c.heads} * c.head_dim,
                kv_width = int64_t{c.kv_heads} * c.head_dim;
  for (int i = 0; i < c.layer_count; ++i) {
    const std::string p = "blk." + std::to_string(i) + ".";
    Layer layer;
    ASSIGN_OR_RETURN(layer.attention_norm, LoadVector(file, p + "attn_norm.weight", c.hidden_size));
    ASSIGN_OR_RETURN(layer.ffn_norm, LoadVector(file, p + "ffn_norm.weight", c.hidden_size));
    ASSIGN_OR_RETURN(layer.q, LoadMatrix(file, p + "attn_q", q_width, c.hidden_size));
    ASSIGN_OR_RETURN(layer.k, LoadMatrix(file, p + "attn_k", kv_width, c.hidden_size));
    ASSIGN_OR_RETURN(layer.v, LoadMatrix(file, p + "attn_v", kv_width, c.hidden_size));
    ASSIGN_OR_RETURN(layer.out, LoadMatrix(file, p + "attn_output", c.hidden_size, q_width));
    ASSIGN_OR_RETURN(layer.ffn, LoadSwiGlu(file, p, c.hidden_size, c.ffn_size));
    model->layers_.push_back(std::move(layer));
  }
  return std::unique_ptr<ReferenceModel>(std::move(model));
}

}  // namespace

Result<std::unique_ptr<ReferenceModel>> LoadLlamaReference(const ModelFile& file) {
  return LlamaReference::Load(file);
}

}  // namespace cairn::reference
