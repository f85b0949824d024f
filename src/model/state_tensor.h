// A piece of a sequence's state in the order the Hugging Face checkpoint would have it, for tests,
// golden files and `selftest`. Not what caches store: they keep a model's own bytes.
//
//   layerI_conv  [K - 1, channels]      the last inputs of the convolution, oldest first, q | k | v
//   layerI_delta [value_heads, dv, dk]  Gated DeltaNet memory
//   layerI_ssm [heads, P, N]            Mamba2 memory; its convolution's inputs are x | B | C
//   layerI_k, _v [kv_heads, tokens, d]  keys after norm and rotary (half-split order), values
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cairn {

struct StateTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> data;
};

}  // namespace cairn
