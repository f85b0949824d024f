// The oracle: a model computed from the equations in double, token after token, from the
// dequantised weights of its file. Slow and plain; no code in common with the kernels or layers.
//
// Threads: immutable after Load.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/token.h"
#include "model/model_file.h"
#include "model/state_tensor.h"

namespace cairn {

class ReferenceModel {
 public:
  struct Output {
    std::vector<std::vector<double>> logits;  // [rows][vocab]
    std::vector<StateTensor> states;          // after the last token
  };

  virtual ~ReferenceModel() = default;
  // Runs the tokens from an empty state; logits for `rows` only.
  virtual Output Run(std::span<const Token> tokens, std::span<const int> rows) const = 0;
};

// Errors: those of LoadModel.
Result<std::unique_ptr<ReferenceModel>> LoadReferenceModel(const ModelFile& file);

}  // namespace cairn
