// What all reference models share around their layers: embedding, final norm, head.
//
// Threads: pure functions.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"
#include "model/reference/reference_math.h"
#include "model/reference/reference_model.h"

namespace cairn::reference {

struct Frame {
  DecoderConfig config;
  Matrix embedding, head;
  Row final_norm;

  Rows Embed(std::span<const Token> tokens) const;
  // Logits of the named rows of the last layer's output, and the states.
  ReferenceModel::Output Finish(const Rows& x, std::span<const int> rows,
                                std::vector<StateTensor> states) const;
};

Result<Frame> LoadFrame(const ModelFile& file, const DecoderConfig& config,
                        std::string_view final_norm = "output_norm.weight");

std::string LayerPrefix(int layer);  // of tensors in the file: "blk.N."
std::string LayerTag(int layer);     // of state tensors: "layerN_"

}  // namespace cairn::reference
