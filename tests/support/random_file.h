// Tiny model files with random weights, made in memory: architectures of which no fixture is in the
// repository, or none with float weights.
//
// Threads: used by one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "support/gguf_writer.h"

namespace cairn::testing {

inline constexpr int kVocab = 96, kHidden = 64, kLayers = 5, kHeads = 4, kKvHeads = 2;
inline constexpr int kHeadDim = 16, kFfn = 96, kExpertFfn = 32, kSharedFfn = 48;
inline constexpr int kExperts = 6, kUsed = 2;

// Keys and tensors of a random model; the same seed and calls give the same bytes.
class RandomFile {
 public:
  RandomFile(std::string arch, uint32_t seed);

  // Keys, without "arch.".
  RandomFile& U32(const std::string& key, uint32_t value);
  RandomFile& F32(const std::string& key, float value);
  RandomFile& String(const std::string& key, const std::string& value);
  RandomFile& I32s(const std::string& key, const std::vector<int32_t>& values);

  // Rows of unit variance in, unit variance out.
  RandomFile& Matrix(const std::string& name, int n, int k) { return Experts(name, 1, n, k); }
  RandomFile& Experts(const std::string& name, int experts, int n, int k);
  RandomFile& Vector(const std::string& name, int n, float mean, float deviation);
  RandomFile& Norm(const std::string& name, int n) { return Vector(name, n, 1, 0.2f); }

  // What layers are made of; `p` begins the names: "blk.3.".
  RandomFile& Attention(const std::string& p, bool biases, bool head_norms);
  RandomFile& Ffn(const std::string& p, const std::string& suffix, int ffn);
  RandomFile& Moe(const std::string& p, bool merged);
  RandomFile& MoeKeys();

  std::vector<std::byte> Bytes() const { return w_.Bytes(); }

 private:
  std::vector<float> Normal(size_t count, float mean, float deviation);

  std::string arch_;
  std::mt19937 random_;
  GgufWriter w_;
};

std::string LayerPrefix(int layer);

// By what a model is called: qwen2, qwen3, smollm3, mistral3, llama, mixtral, qwen2moe, qwen3moe,
// lfm2moe, qwen35moe. REQUIRES: one of these.
RandomFile RandomFamily(std::string_view name);

}  // namespace cairn::testing
