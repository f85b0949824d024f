#include "model/kimi_linear_config.h"

#include <cmath>
#include <string>

namespace cairn {
namespace {

constexpr int kHeadsMax = 4096;
constexpr int kSizeMax = 1 << 16;
constexpr int kFfnMax = 1 << 20;
constexpr int kRowMax = 576;        // AttentionShape::head_dim
constexpr int kDeltaHeadMax = 256;  // GatedDeltaShape::key_dim

Result<LatentAttentionSizes> ReadLatentSizes(const ModelFile& file, std::string_view arch) {
  LatentAttentionSizes sizes;
  ASSIGN_OR_RETURN(sizes.latent, ReadSize(file, arch, "attention.kv_lora_rank", 1, kSizeMax));
  ASSIGN_OR_RETURN(const int row,
                   ReadSize(file, arch, "attention.key_length", sizes.latent, kSizeMax));
  sizes.shared = row - sizes.latent;
  ASSIGN_OR_RETURN(const int query,
                   ReadSize(file, arch, "attention.key_length_mla", sizes.shared + 1, kSizeMax));
  sizes.head_key = query - sizes.shared;
  ASSIGN_OR_RETURN(sizes.head_value,
                   ReadSize(file, arch, "attention.value_length_mla", 1, kSizeMax));
  if (row > kRowMax || row % 8 != 0) {
    return Unsupported("[model] latent attention with rows of " + std::to_string(sizes.latent) +
                       " + " + std::to_string(sizes.shared) +
                       " channels; wanted a multiple of 8, at most " + std::to_string(kRowMax));
  }
  return sizes;
}

Result<GatedDeltaShape> ReadDelta(const ModelFile& file, std::string_view arch, int heads) {
  ASSIGN_OR_RETURN(const int head_dim, ReadSize(file, arch, "kda.head_dim", 1, kSizeMax));
  if (head_dim > kDeltaHeadMax || head_dim % 16 != 0) {
    return Unsupported("[model] kda.head_dim is " + std::to_string(head_dim) +
                       ", wanted a multiple of 16, at most " + std::to_string(kDeltaHeadMax));
  }
  return GatedDeltaShape{.key_heads = heads,
                         .value_heads = heads,
                         .key_dim = head_dim,
                         .value_dim = head_dim,
                         .map = DeltaHeadMap::kGrouped,
                         .decay = DeltaDecay::kPerKeyChannel};
}

}  // namespace

Result<KimiLinearConfig> ReadKimiLinearConfig(const ModelFile& file) {
  ASSIGN_OR_RETURN(const std::string_view arch, file.GetString("general.architecture"));
  KimiLinearConfig config;
  DecoderConfig& decoder = config.decoder;
  ASSIGN_OR_RETURN(decoder, ReadDecoderFrame(file, arch));
  ASSIGN_OR_RETURN(decoder.ffn_size, ReadSize(file, arch, "feed_forward_length", 1, kFfnMax));
  ASSIGN_OR_RETURN(decoder.heads, ReadSize(file, arch, "attention.head_count", 1, kHeadsMax));
  ASSIGN_OR_RETURN(decoder.layer_kv_heads, ReadLayerSizes(file, arch, "attention.head_count_kv",
                                                          decoder.layer_count, 0, kHeadsMax));
  ASSIGN_OR_RETURN(config.latent, ReadLatentSizes(file, arch));
  decoder.kv_heads = 1;
  decoder.head_dim = config.latent.row();
  decoder.attention_scale =
      static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.latent.query())));
  ASSIGN_OR_RETURN(config.delta, ReadDelta(file, arch, decoder.heads));
  ASSIGN_OR_RETURN(config.conv_kernel, ReadSize(file, arch, "ssm.conv_kernel", 2, 8));
  // 1e-20: the published model code.
  ASSIGN_OR_RETURN(config.moe,
                   ReadMoeConfig(file, arch, decoder.ffn_size,
                                 {.gate = RouterGate::kSigmoid, .denominator_add = 1e-20f}));
  ASSIGN_OR_RETURN(config.dense_layers,
                   ReadSize(file, arch, "leading_dense_block_count", 0, decoder.layer_count, 0));
  return config;
}

}  // namespace cairn
