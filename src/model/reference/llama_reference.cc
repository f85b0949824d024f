#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/llama_family.h"
#include "model/reference/architectures.h"
#include "model/reference/reference_frame.h"
#include "model/reference/reference_parts.h"

namespace cairn::reference {
namespace {

struct Layer {
  Row attention_norm, ffn_norm;
  AttentionWeights attention;
  Ffn ffn;
};

class LlamaReference final : public ReferenceModel {
 public:
  static Result<std::unique_ptr<ReferenceModel>> Load(const ModelFile& file);
  Output Run(std::span<const Token> tokens, std::span<const int> rows) const override;

 private:
  LlamaConfig config_;
  Rotary rotary_;
  Frame frame_;
  std::vector<Layer> layers_;
};

ReferenceModel::Output LlamaReference::Run(std::span<const Token> tokens,
                                           std::span<const int> rows) const {
  const DecoderConfig& c = config_.decoder;
  const bool half_split = config_.family.pairs == RopePairs::kHalfSplit;
  std::vector<StateTensor> states;
  Rows x = frame_.Embed(tokens);
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    const std::string tag = LayerTag(static_cast<int>(i));
    const Rows y = RmsNorm(x, layer.attention_norm, c.norm_eps);
    const AttentionWeights& net = layer.attention;
    Rows q = net.q(y), k = net.k(y);
    const Rows v = net.v(y);
    if (!net.q_norm.empty()) {
      q = RmsNorm(q, net.q_norm, c.norm_eps);
      k = RmsNorm(k, net.k_norm, c.norm_eps);
    }
    if (config_.HasPositions(static_cast<int>(i))) {
      Rotate(q, rotary_.inv_freq, c.head_dim, half_split, rotary_.magnitude);
      Rotate(k, rotary_.inv_freq, c.head_dim, half_split, rotary_.magnitude);
    }
    for (size_t t = 0; t < q.size(); ++t) {
      const double periods = std::floor(static_cast<double>(t) / config_.growth.period);
      for (double& value : q[t]) value *= 1 + config_.growth.rate * std::log(1 + periods);
    }
    Add(x, net.out(CausalAttention(q, k, v, c.heads, c.kv_heads, c.head_dim)));
    Add(x, layer.ffn(RmsNorm(x, layer.ffn_norm, c.norm_eps)));
    states.push_back(
        KvState(tag + "k", half_split ? k : HalfSplit(k, c.head_dim), c.kv_heads, c.head_dim));
    states.push_back(KvState(tag + "v", v, c.kv_heads, c.head_dim));
  }
  return frame_.Finish(x, rows, std::move(states));
}

Result<std::unique_ptr<ReferenceModel>> LlamaReference::Load(const ModelFile& file) {
  auto model = std::make_unique<LlamaReference>();
  ASSIGN_OR_RETURN(model->config_, ReadLlamaConfig(file));
  const DecoderConfig& c = model->config_.decoder;
  ASSIGN_OR_RETURN(model->rotary_, LoadRotary(file, c.rope, c.trained_context_length));
  ASSIGN_OR_RETURN(model->frame_, LoadFrame(file, c));
  for (int i = 0; i < c.layer_count; ++i) {
    const std::string p = LayerPrefix(i);
    Layer layer;
    ASSIGN_OR_RETURN(layer.attention_norm, LoadVector(file, p + "attn_norm.weight", c.hidden_size));
    ASSIGN_OR_RETURN(layer.ffn_norm, LoadVector(file, p + "ffn_norm.weight", c.hidden_size));
    ASSIGN_OR_RETURN(layer.attention, LoadAttention(file, p, c));
    ASSIGN_OR_RETURN(layer.ffn, LoadFfn(file, p, c.hidden_size, c.ffn_size, model->config_.moe));
    model->layers_.push_back(std::move(layer));
  }
  return std::unique_ptr<ReferenceModel>(std::move(model));
}

}  // namespace

Result<std::unique_ptr<ReferenceModel>> LoadLlamaReference(const ModelFile& file) {
  return LlamaReference::Load(file);
}

}  // namespace cairn::reference
