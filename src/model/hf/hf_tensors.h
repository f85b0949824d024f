// Tensors of a Hugging Face or MLX directory turned into tensors as GGUF has them: rows gathered
// from one or more sources, a value changed on the way where the conventions differ. Nothing is
// done before the loader asks for a tensor, and what needs no change is not copied.
//
// Threads: values; the shards must outlive them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "kernels/weight_type.h"
#include "model/hf/hf_files.h"
#include "model/weights.h"

namespace cairn {

// A tensor of the directory, seen as rows of its last dimension; a vector is rows of one element.
// Of a quantised linear layer, the packed integers with their scales and offsets.
struct HfSource {
  std::string name;
  WeightType type = WeightType::kF32;
  std::vector<int64_t> shape;  // slowest first, in elements
  int64_t rows = 0;
  int64_t k = 0;
  std::span<const std::byte> data;
  std::span<const std::byte> scales, biases;  // affine types only: [rows, k / group]
};

// `count` rows of a source from `begin` on.
struct HfRun {
  const HfSource* source;
  int64_t begin;
  int64_t count;
};

enum class HfValue {
  kAsIs,
  kAddOne,  // an RMSNorm that computes 1 + w
  kNegExp,  // A = -exp(A_log)
};

// One tensor under its GGUF name.
struct HfRecipe {
  WeightType type = WeightType::kF32;
  std::vector<int64_t> shape;
  std::vector<HfRun> runs;
  HfValue value = HfValue::kAsIs;
  bool transposed = false;      // each run [count, k] becomes [k, count]; float types only
  std::vector<float> constant;  // in place of runs

  uint64_t bytes() const;  // of the tensor as handed to the loader
};

// Its data: a view of the file where rows need neither change nor a new order, else a copy.
TensorView MakeTensor(const HfRecipe& recipe, const HfShards& shards);

}  // namespace cairn
