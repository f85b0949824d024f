#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/llama_family.h"
#include "model/reference/architectures.h"
#include "model/reference/moe_reference.h"
#include "model/reference/reference_math.h"

namespace cairn::reference {
namespace {

struct Layer {
  Row attention_norm, ffn_norm;
  Matrix q, k, v, out;
  Row q_norm, k_norm;  // or empty
  SwiGlu ffn;
  std::optional<Moe> moe;
};

class LlamaReference final : public ReferenceModel {
 public:
  static Result<std::unique_ptr<ReferenceModel>> Load(const ModelFile& file);
  Output Run(std::span<const Token> tokens, std::span<const int> rows) const override;

 private:
  LlamaConfig config_;
  Rotary rotary_;
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
  const DecoderConfig& c = config_.decoder;
  const bool half_split = config_.family.pairs == RopePairs::kHalfSplit;
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
    if (!layer.q_norm.empty()) {
      q = RmsNorm(q, layer.q_norm, c.norm_eps);
      k = RmsNorm(k, layer.k_norm, c.norm_eps);
    }
    if (config_.HasPositions(static_cast<int>(i))) {
      Rotate(q, rotary_.inv_freq, c.head_dim, half_split, rotary_.magnitude);
      Rotate(k, rotary_.inv_freq, c.head_dim, half_split, rotary_.magnitude);
    }
    Add(x, layer.out(CausalAttention(q, k, v, c.heads, c.kv_heads, c.head_dim)));
    const Rows z = RmsNorm(x, layer.ffn_norm, c.norm_eps);
    Add(x, layer.moe.has_value() ? (*layer.moe)(z) : layer.ffn(z));
    output.states.push_back(
        KvState(tag + "k", half_split ? k : HalfSplit(k, c.head_dim), c.kv_heads, c.head_dim));
    output.states.push_back(KvState(tag + "v", v, c.kv_heads, c.head_dim));
  }
  for (const int row : rows) {
    output.logits.push_back(head_(RmsNorm(x[row], final_norm_, c.norm_eps)));
  }
  return output;
}

Result<std::unique_ptr<ReferenceModel>> LlamaReference::Load(const ModelFile& file) {
  auto model = std::make_unique<LlamaReference>();
  ASSIGN_OR_RETURN(model->config_, ReadLlamaConfig(file));
  const DecoderConfig& c = model->config_.decoder;
  ASSIGN_OR_RETURN(model->rotary_, LoadRotary(file, c.rope, c.trained_context_length));
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
    if (model->config_.family.head_norms) {
      ASSIGN_OR_RETURN(layer.q_norm, LoadVector(file, p + "attn_q_norm.weight", c.head_dim));
      ASSIGN_OR_RETURN(layer.k_norm, LoadVector(file, p + "attn_k_norm.weight", c.head_dim));
    }
    if (model->config_.moe.has_value()) {
      ASSIGN_OR_RETURN(layer.moe, LoadMoe(file, p, c.hidden_size, *model->config_.moe));
    } else {
      ASSIGN_OR_RETURN(layer.ffn, LoadSwiGlu(file, p, c.hidden_size, c.ffn_size));
    }
    model->layers_.push_back(std::move(layer));
  }
  return std::unique_ptr<ReferenceModel>(std::move(model));
}

}  // namespace

Result<std::unique_ptr<ReferenceModel>> LoadLlamaReference(const ModelFile& file) {
  return LlamaReference::Load(file);
}

}  // namespace cairn::reference
