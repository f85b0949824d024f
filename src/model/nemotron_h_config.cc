#include "model/nemotron_h_config.h"

#include <algorithm>
#include <string>

namespace cairn {

Result<NemotronHConfig> ReadNemotronHConfig(const ModelFile& file) {
  constexpr std::string_view kArch = "nemotron_h";
  NemotronHConfig config;
  DecoderConfig& decoder = config.decoder;
  ASSIGN_OR_RETURN(decoder, ReadDecoderFrame(file, kArch));
  RETURN_IF_ERROR(ReadAttention(file, kArch, decoder));
  ASSIGN_OR_RETURN(config.mixer, ReadMamba2Config(file, kArch));
  ASSIGN_OR_RETURN(config.ffn_sizes, ReadLayerSizes(file, kArch, "feed_forward_length",
                                                    decoder.layer_count, 0, 1 << 20));
  decoder.ffn_size = *std::max_element(config.ffn_sizes.begin(), config.ffn_sizes.end());
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
