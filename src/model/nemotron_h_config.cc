#include "model/nemotron_h_config.h"

#include <algorithm>
#include <string>

#include "model/moe_config.h"

namespace cairn {

Result<NemotronHConfig> ReadNemotronHConfig(const ModelFile& file) {
  ASSIGN_OR_RETURN(const std::string_view arch, file.GetString("general.architecture"));
  NemotronHConfig config;
  DecoderConfig& decoder = config.decoder;
  ASSIGN_OR_RETURN(decoder, ReadDecoderFrame(file, arch));
  ASSIGN_OR_RETURN(const int predict_layers,
                   ReadSize(file, arch, "nextn_predict_layers", 0, decoder.layer_count - 1, 0));
  decoder.layer_count -= predict_layers;
  RETURN_IF_ERROR(ReadAttention(file, arch, decoder));
  ASSIGN_OR_RETURN(config.mixer, ReadMamba2Config(file, arch));
  ASSIGN_OR_RETURN(config.ffn_sizes, ReadLayerSizes(file, arch, "feed_forward_length",
                                                    decoder.layer_count, 0, 1 << 20));
  decoder.ffn_size = *std::max_element(config.ffn_sizes.begin(), config.ffn_sizes.end());
  if (file.Has(std::string(arch) + ".moe_latent_size"))
    return Unsupported("[model] experts in a latent space are not in this version");
  // The router is that of DeepSeek-V3.
  ASSIGN_OR_RETURN(config.moe,
                   ReadMoeConfig(file, arch, decoder.ffn_size,
                                 {.gate = RouterGate::kSigmoid, .denominator_add = 1e-20f}));
  if (config.moe.has_value()) config.moe->kind = ExpertKind::kRelu2;
  for (int i = 0; i < decoder.layer_count; ++i) {
    const bool attention = decoder.layer_kv_heads[i] > 0, ffn = config.ffn_sizes[i] > 0;
    if (attention && ffn) {
      return DataLoss("[model] layer " + std::to_string(i) +
                      " has attention and a feed-forward block, wanted one of them");
    }
    config.blocks.push_back(attention ? NemotronBlock::kAttention
                            : ffn     ? NemotronBlock::kFfn
                                      : NemotronBlock::kMamba);
  }
  return config;
}

}  // namespace cairn
