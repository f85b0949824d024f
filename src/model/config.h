// Hyperparameters of a model file, read from GGUF metadata and checked: every number used as a size
// is in range afterwards.
//
// Threads: values and pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "kernels/attention.h"
#include "kernels/rope.h"
#include "model/model_file.h"
#include "model/rope_config.h"
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
  int kv_heads = 0;                 // of the layers that have attention
  std::vector<int> layer_kv_heads;  // [layer_count]; 0: no attention in that layer
  int head_dim = 0;
  RopeConfig rope;
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

// Its parts, for architectures without attention or whose layers have other widths: everything but
// heads, rotary positions and ffn_size; and heads with rotary positions. Errors: the same.
Result<DecoderConfig> ReadDecoderFrame(const ModelFile& file, std::string_view architecture);
Status ReadAttention(const ModelFile& file, std::string_view architecture, DecoderConfig& config);

// The integer `architecture`.`key` within [min, max]; `fallback` if the key is absent and the
// fallback is not negative.
Result<int> ReadSize(const ModelFile& file, std::string_view architecture, std::string_view key,
                     int min, int max, int fallback = -1);

// The same for each of `layers` layers: an array of as many integers, or one integer for all.
Result<std::vector<int>> ReadLayerSizes(const ModelFile& file, std::string_view architecture,
                                        std::string_view key, int layers, int min, int max,
                                        int fallback = -1);

}  // namespace cairn
