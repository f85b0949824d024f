// y = x W^T (+ bias) for one or more matrices that read the same input and lie side by side in one
// output row: q|k|v, gate|up. Parts that share a weight type become one stacked matrix, so one
// MatMul computes them; a part never changes another part's bits.
//
// Threads: immutable after Load.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/matmul.h"
#include "model/layers/step.h"
#include "model/weights.h"

namespace cairn {

class Projection {
 public:
  struct Part {
    std::string name;  // "blk.0.attn_q": NAME.weight [n, k], and NAME.bias [n] if the file has it
    int64_t n;
    std::vector<int64_t> rows = {};  // their order, where it is not the file's (Weights::Matrix)
  };
  // Errors: those of Weights::Matrix.
  static Result<Projection> Load(Weights& weights, std::span<const Part> parts, int64_t k);

  // From now on output columns are multiplied by the factor of their part, bias included. The parts
  // cover n() columns in order; once at most.
  struct ScaledPart {
    int64_t n;
    float scale;
  };
  void ScaleOutputs(std::span<const ScaledPart> parts);

  int64_t n() const { return n_; }  // of all parts
  int64_t k() const { return k_; }
  size_t bytes() const;  // of packed matrices and biases

  // y [rows, ldy] = (x [rows, k] W^T + bias) * scale; x contiguous. Uses scratch.activations.
  void Apply(const Step& step, const float* x, int rows, float* y, int64_t ldy) const;
  // The same in two parts. An input without x fits where all weights are quantised.
  Activations Prepare(const Step& step, const float* x, int rows) const;
  void Apply(const Step& step, const Activations& input, float* y, int64_t ldy) const;

  // Of a projection whose input is the scratch's `normed`.
  void ReadsNormed(ScratchNeeds& needs) const { needs.int8_normed |= quantized_; }

  // The matrix if it is the only one, quantised, and all there is to this projection, else null.
  const PackedMatrix* QuantizedMatrix() const;

 private:
  struct Piece {
    PackedMatrix matrix;
    int64_t column;  // of its first output
  };
  std::vector<Piece> pieces_;
  std::vector<float> bias_;   // [n], or empty
  std::vector<float> scale_;  // [n], or empty
  int64_t n_ = 0;
  int64_t k_ = 0;
  bool quantized_ = false;  // some piece reads the int8 form of x
};

// The parts q, k, v of an attention layer: PREFIX attn_q, attn_k and attn_v, or attn_qkv where the
// file has the three as one.
std::vector<Projection::Part> QkvParts(const Weights& weights, const std::string& prefix, int64_t q,
                                       int64_t k, int64_t v);

}  // namespace cairn
