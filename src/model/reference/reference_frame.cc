#include "model/reference/reference_frame.h"

#include <utility>

namespace cairn::reference {

Rows Frame::Embed(std::span<const Token> tokens) const {
  Rows x;
  for (const Token token : tokens) {
    const auto row = embedding.w.begin() + int64_t{token} * config.hidden_size;
    x.emplace_back(row, row + config.hidden_size);
  }
  Multiply(x, config.embedding_scale);
  return x;
}

ReferenceModel::Output Frame::Finish(const Rows& x, std::span<const int> rows,
                                     std::vector<StateTensor> states) const {
  ReferenceModel::Output output;
  for (const int row : rows) {
    output.logits.push_back(head(RmsNorm(x[row], final_norm, config.norm_eps)));
  }
  Multiply(output.logits, config.logit_scale);
  output.states = std::move(states);
  return output;
}

Result<Frame> LoadFrame(const ModelFile& file, const DecoderConfig& config,
                        std::string_view final_norm) {
  const int64_t vocab = config.vocab_size, hidden = config.hidden_size;
  Frame frame{.config = config, .embedding = {}, .head = {}, .final_norm = {}};
  ASSIGN_OR_RETURN(frame.embedding, LoadMatrix(file, "token_embd", vocab, hidden));
  ASSIGN_OR_RETURN(frame.head,
                   LoadMatrix(file, config.tied ? "token_embd" : "output", vocab, hidden));
  ASSIGN_OR_RETURN(frame.final_norm, LoadVector(file, std::string(final_norm), hidden));
  return frame;
}

std::string LayerPrefix(int layer) { return "blk." + std::to_string(layer) + "."; }
std::string LayerTag(int layer) { return "layer" + std::to_string(layer) + "_"; }

}  // namespace cairn::reference
