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
constexpr int kHeadDimMax = 512;  // AttentionShape
constexpr int kVocabMax = 1 << 24;
constexpr int kContextMax = 1 << 30;  // declared; ComputeRopeAngles bounds what is in force

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

Status ReadRope(const ModelFile& file, std::string_view arch, DecoderConfig& config) {
  ASSIGN_OR_RETURN(const float base, ReadPositive(file, Key(arch, "rope.freq_base"), 10000.0f));
  config.rope_base = base;
  ASSIGN_OR_RETURN(config.rotary_dims, ReadSize(file, arch, "rope.dimension_count", 2,
                                                config.head_dim, config.head_dim));
  if (config.rotary_dims % 2 != 0) {
    return DataLoss("[model] rope.dimension_count is " + std::to_string(config.rotary_dims) +
                    ", wanted an even number");
  }
  ASSIGN_OR_RETURN(const auto type, file.FindString(Key(arch, "rope.scaling.type")));
  if (!type.has_value() || *type == "none") return {};
  if (*type != "linear") {
    return Unsupported("[model] rope scaling '" + std::string(*type) +
                       "' is not in this version; it knows none, linear and rope_freqs tensors");
  }
  ASSIGN_OR_RETURN(const float factor, ReadPositive(file, Key(arch, "rope.scaling.factor"), 1.0f));
  config.rope_scale = factor;
  return {};
}

Status ReadHeads(const ModelFile& file, std::string_view arch, DecoderConfig& config) {
  ASSIGN_OR_RETURN(config.heads, ReadSize(file, arch, "attention.head_count", 1, kHeadsMax));
  ASSIGN_OR_RETURN(config.kv_heads,
                   ReadSize(file, arch, "attention.head_count_kv", 1, kHeadsMax, config.heads));
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
                       " values; wanted equal sizes, a multiple of 8, at most 512");
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

Result<DecoderConfig> ReadDecoderConfig(const ModelFile& file, std::string_view architecture) {
  const std::string_view arch = architecture;
  DecoderConfig config;
  config.architecture = arch;
  config.name = ModelName(file);
  ASSIGN_OR_RETURN(config.hidden_size, ReadSize(file, arch, "embedding_length", 1, kHiddenMax));
  ASSIGN_OR_RETURN(config.layer_count, ReadSize(file, arch, "block_count", 1, kLayersMax));
  ASSIGN_OR_RETURN(config.ffn_size, ReadSize(file, arch, "feed_forward_length", 1, kFfnMax));
  ASSIGN_OR_RETURN(const int context, ReadSize(file, arch, "context_length", 1, kContextMax));
  config.trained_context_length = context;
  ASSIGN_OR_RETURN(config.norm_eps,
                   ReadPositive(file, Key(arch, "attention.layer_norm_rms_epsilon"), 1e-5f));
  RETURN_IF_ERROR(ReadHeads(file, arch, config));
  RETURN_IF_ERROR(ReadRope(file, arch, config));
  ASSIGN_OR_RETURN(const int experts, ReadSize(file, arch, "expert_count", 0, 1 << 20, 0));
  if (experts > 0) {
    return Unsupported("[model] mixture of experts (" + std::to_string(experts) +
                       " experts) is not in this version");
  }
  ASSIGN_OR_RETURN(const std::vector<int64_t> embedding, file.TensorShape("token_embd.weight"));
  if (embedding.size() != 2 || embedding[0] < 1 || embedding[0] > kVocabMax) {
    return DataLoss("[model] token_embd.weight is no matrix with 1 to " +
                    std::to_string(kVocabMax) + " rows");
  }
  config.vocab_size = static_cast<int>(embedding[0]);
  config.tied = !file.HasTensor("output.weight");
  return config;
}

RopeTable MakeRopeTable(const DecoderConfig& config, RopePairs pairs) {
  RopeTable table;
  table.pairs = pairs;
  table.rotary_dims = config.rotary_dims;
  table.inv_freq = RopeInverseFrequencies(config.rope_base, config.rotary_dims);
  for (double& frequency : table.inv_freq) frequency /= config.rope_scale;
  return table;
}

}  // namespace cairn
