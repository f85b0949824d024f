// Hyperparameters of a model file, read from GGUF metadata and checked: every number used as a size
// is in range afterwards.
//
// Threads: values and pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "kernels/attention.h"
#include "kernels/rope.h"
#include "model/model_file.h"
#include "model/weights.h"

namespace cairn {

// What every decoder of this project has.
struct DecoderConfig {
  std::string architecture;  // "qwen35"
  std::string name;          // general.name, or the file's stem
  int vocab_size = 0;
  int hidden_size = 0;
  int layer_count = 0;
  int ffn_size = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int rotary_dims = 0;
  double rope_base = 0;
  double rope_scale = 1;  // "linear" scaling: positions are divided by it
  float norm_eps = 0;
  int64_t trained_context_length = 0;
  bool tied = false;  // no output.weight: the embedding is the head

  // Factors on the embedding, on each branch that joins the residual stream, and on the logits.
  float embedding_scale = 1;
  float residual_scale = 1;
  float logit_scale = 1;
  std::optional<float> attention_scale;  // on q . k; else head_dim^-1/2
  AttentionShape attention_shape(KvType kv_type) const;
};

// Errors: DataLoss (missing key, wrong type, out of range), Unsupported (a feature of the
// architecture that this version does not compute).
Result<DecoderConfig> ReadDecoderConfig(const ModelFile& file, std::string_view architecture);

// The integer `architecture`.`key` within [min, max]; `fallback` if the key is absent and the
// fallback is not negative.
Result<int> ReadSize(const ModelFile& file, std::string_view architecture, std::string_view key,
                     int min, int max, int fallback = -1);

// base^(-2i/n) / rope_scale for i < n / 2.
RopeTable MakeRopeTable(const DecoderConfig& config, RopePairs pairs);

}  // namespace cairn
