#include "model/config.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

namespace cairn {
namespace {

constexpr int kHiddenMax = 1 << 17;
constexpr int kFfnMax = 1 << 20;
constexpr int kLayersMax = 1024;
constexpr int kHeadsMax = 4096;
constexpr int kHeadDimMax = 576;  // AttentionShape
constexpr int kVocabMax = 1 << 24;
constexpr int kContextMax = 1 << 30;  // declared; kContextLengthMax bounds what is in force

std::string Key(std::string_view architecture, std::string_view key) {
  return std::string(architecture) + "." + std::string(key);
}

Result<float> ReadPositive(const ModelFile& file, const std::string& key, float fallback) {
  ASSIGN_OR_RETURN(const float value, file.GetF32Or(key, fallback));
  if (!std::isfinite(value) || value <= 0) {
    return DataLoss("[model] " + key + " is " + std::to_string(value) +
                    ", wanted a positive number");
  }
  return value;
}

std::string ModelName(const ModelFile& file) {
  auto name = file.FindString("general.name");
  if (name.ok() && name->has_value() && !(*name)->empty()) return std::string(**name);
  return std::filesystem::path(file.path()).stem().string();
}

Status ReadHeads(const ModelFile& file, std::string_view arch, DecoderConfig& config) {
  ASSIGN_OR_RETURN(config.heads, ReadSize(file, arch, "attention.head_count", 1, kHeadsMax));
  ASSIGN_OR_RETURN(config.layer_kv_heads,
                   ReadLayerSizes(file, arch, "attention.head_count_kv", config.layer_count, 0,
                                  kHeadsMax, config.heads));
  for (const int kv_heads : config.layer_kv_heads) {
    if (kv_heads == 0) continue;
    if (config.kv_heads != 0 && kv_heads != config.kv_heads)
      return Unsupported("[model] layers with different numbers of key-value heads");
    config.kv_heads = kv_heads;
  }
  if (config.kv_heads == 0) return DataLoss("[model] no layer has key-value heads");
  if (config.heads % config.kv_heads != 0) {
    return DataLoss("[model] " + std::to_string(config.heads) + " heads are no multiple of " +
                    std::to_string(config.kv_heads) + " key-value heads");
  }
  // Files without attention.key_length: the rotary width, else hidden / heads.
  const int even_share =
      config.hidden_size % config.heads == 0 ? std::max(1, config.hidden_size / config.heads) : -1;
  ASSIGN_OR_RETURN(const int rotary, ReadSize(file, arch, "rope.dimension_count", 1, 1 << 16, 0));
  ASSIGN_OR_RETURN(config.head_dim, ReadSize(file, arch, "attention.key_length", 1, 1 << 16,
                                             rotary > 0 ? rotary : even_share));
  ASSIGN_OR_RETURN(const int value_dim,
                   ReadSize(file, arch, "attention.value_length", 1, 1 << 16, config.head_dim));
  if (config.head_dim > kHeadDimMax || config.head_dim % 8 != 0 || value_dim != config.head_dim) {
    return Unsupported("[model] attention heads of " + std::to_string(config.head_dim) + " keys, " +
                       std::to_string(value_dim) +
                       " values; wanted equal sizes, a multiple of 8, at most 576");
  }
  return {};
}

}  // namespace

AttentionShape DecoderConfig::attention_shape(KvType kv_type) const {
  return {.heads = heads,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .scale = attention_scale.value_or(
              static_cast<float>(1.0 / std::sqrt(static_cast<double>(std::max(head_dim, 1))))),
          .kv_type = kv_type};
}

Result<int> ReadSize(const ModelFile& file, std::string_view architecture, std::string_view key,
                     int min, int max, int fallback) {
  const std::string name = Key(architecture, key);
  ASSIGN_OR_RETURN(const auto found, file.FindI64(name));
  if (!found.has_value()) {
    if (fallback >= 0) return fallback;
    return DataLoss("[model] " + name + " is missing");
  }
  if (*found < min || *found > max) {
    return DataLoss("[model] " + name + " is " + std::to_string(*found) + ", wanted " +
                    std::to_string(min) + " to " + std::to_string(max));
  }
  return static_cast<int>(*found);
}

Result<std::vector<int>> ReadLayerSizes(const ModelFile& file, std::string_view architecture,
                                        std::string_view key, int layers, int min, int max,
                                        int fallback) {
  const std::string name = Key(architecture, key);
  if (!file.ArraySize(name).has_value()) {
    ASSIGN_OR_RETURN(const int all, ReadSize(file, architecture, key, min, max, fallback));
    return std::vector<int>(layers, all);
  }
  ASSIGN_OR_RETURN(const std::vector<int64_t> values, file.GetI64Array(name));
  if (static_cast<int64_t>(values.size()) < layers) {
    return DataLoss("[model] " + name + " has " + std::to_string(values.size()) +
                    " values, wanted one for each of " + std::to_string(layers) + " layers");
  }
  std::vector<int> sizes;
  for (int i = 0; i < layers; ++i) {
    if (values[i] < min || values[i] > max) {
      return DataLoss("[model] " + name + " has " + std::to_string(values[i]) + ", wanted " +
                      std::to_string(min) + " to " + std::to_string(max));
    }
    sizes.push_back(static_cast<int>(values[i]));
  }
  return sizes;
}

Result<DecoderConfig> ReadDecoderFrame(const ModelFile& file, std::string_view architecture) {
  const std::string_view arch = architecture;
  DecoderConfig config;
  config.architecture = arch;
  config.name = ModelName(file);
  ASSIGN_OR_RETURN(config.hidden_size, ReadSize(file, arch, "embedding_length", 1, kHiddenMax));
  ASSIGN_OR_RETURN(config.layer_count, ReadSize(file, arch, "block_count", 1, kLayersMax));
  ASSIGN_OR_RETURN(const int context, ReadSize(file, arch, "context_length", 1, kContextMax));
  config.trained_context_length = context;
  // Nemotron-H's converter may write the other name alone.
  ASSIGN_OR_RETURN(const float other_eps,
                   ReadPositive(file, Key(arch, "attention.layer_norm_epsilon"), 1e-5f));
  ASSIGN_OR_RETURN(config.norm_eps,
                   ReadPositive(file, Key(arch, "attention.layer_norm_rms_epsilon"), other_eps));
  ASSIGN_OR_RETURN(const std::vector<int64_t> embedding, file.TensorShape("token_embd.weight"));
  if (embedding.size() != 2 || embedding[0] < 1 || embedding[0] > kVocabMax) {
    return DataLoss("[model] token_embd.weight is no matrix with 1 to " +
                    std::to_string(kVocabMax) + " rows");
  }
  config.vocab_size = static_cast<int>(embedding[0]);
  config.tied = !file.HasTensor("output.weight");
  return config;
}

Status ReadAttention(const ModelFile& file, std::string_view architecture, DecoderConfig& config) {
  RETURN_IF_ERROR(ReadHeads(file, architecture, config));
  ASSIGN_OR_RETURN(config.rope, ReadRopeConfig(file, architecture, config.head_dim,
                                               config.trained_context_length));
  return {};
}

Result<DecoderConfig> ReadDecoderConfig(const ModelFile& file, std::string_view architecture) {
  ASSIGN_OR_RETURN(DecoderConfig config, ReadDecoderFrame(file, architecture));
  // Models with experts in every layer may leave it out.
  ASSIGN_OR_RETURN(const int experts, ReadSize(file, architecture, "expert_count", 0, 1 << 20, 0));
  ASSIGN_OR_RETURN(config.ffn_size, ReadSize(file, architecture, "feed_forward_length", 1, kFfnMax,
                                             experts > 0 ? 0 : -1));
  RETURN_IF_ERROR(ReadAttention(file, architecture, config));
  return config;
}

}  // namespace cairn
