#include "model/qwen35_config.h"

#include <string>

namespace cairn {

// attention.recurrent_layers, else every full_attention_interval-th layer has attention.
static Result<std::vector<int>> ReadRecurrentLayers(const ModelFile& file, std::string_view arch,
                                                    int layers) {
  if (file.Has(std::string(arch) + ".attention.recurrent_layers"))
    return ReadLayerSizes(file, arch, "attention.recurrent_layers", layers, 0, 1);
  ASSIGN_OR_RETURN(const int interval,
                   ReadSize(file, arch, "full_attention_interval", 1, 1 << 16, 4));
  std::vector<int> recurrent;
  for (int i = 1; i <= layers; ++i) recurrent.push_back(i % interval == 0 ? 0 : 1);
  return recurrent;
}

Result<Qwen35Config> ReadQwen35Config(const ModelFile& file) {
  ASSIGN_OR_RETURN(const std::string_view name, file.GetString("general.architecture"));
  const std::string_view arch = name;
  Qwen35Config config;
  ASSIGN_OR_RETURN(config.decoder, ReadDecoderConfig(file, arch));
  DecoderConfig& decoder = config.decoder;
  ASSIGN_OR_RETURN(const int predict_layers,
                   ReadSize(file, arch, "nextn_predict_layers", 0, decoder.layer_count - 1, 0));
  decoder.layer_count -= predict_layers;
  ASSIGN_OR_RETURN(config.recurrent_layers, ReadRecurrentLayers(file, arch, decoder.layer_count));
  ASSIGN_OR_RETURN(config.conv_kernel, ReadSize(file, arch, "ssm.conv_kernel", 2, 8));

  GatedDeltaShape& delta = config.delta;
  // GGUF tiles the value heads of Qwen3.5 over the key heads; those of Qwen3-Next and of Hugging
  // Face checkpoints are grouped.
  ASSIGN_OR_RETURN(
      const bool grouped,
      file.GetBoolOr(std::string(arch) + ".ssm.value_heads_grouped", arch == "qwen3next"));
  delta.map = grouped ? DeltaHeadMap::kGrouped : DeltaHeadMap::kTiled;
  ASSIGN_OR_RETURN(delta.key_heads, ReadSize(file, arch, "ssm.group_count", 1, 4096));
  ASSIGN_OR_RETURN(delta.value_heads, ReadSize(file, arch, "ssm.time_step_rank", 1, 4096));
  ASSIGN_OR_RETURN(delta.key_dim, ReadSize(file, arch, "ssm.state_size", 1, 256));
  ASSIGN_OR_RETURN(const int inner, ReadSize(file, arch, "ssm.inner_size", 1, 1 << 20));
  if (delta.value_heads % delta.key_heads != 0 || inner % delta.value_heads != 0) {
    return DataLoss("[model] Gated DeltaNet sizes do not divide: inner size " +
                    std::to_string(inner) + ", " + std::to_string(delta.value_heads) +
                    " value heads, " + std::to_string(delta.key_heads) + " key heads");
  }
  delta.value_dim = inner / delta.value_heads;
  if (delta.value_dim % 16 != 0) {
    return Unsupported("[model] Gated DeltaNet value heads of " + std::to_string(delta.value_dim) +
                       "; wanted a multiple of 16");
  }
  if (arch == "qwen3next") {
    config.gate_rows = GateRows::kByKeyHead;
  }
  ASSIGN_OR_RETURN(config.moe, ReadMoeConfig(file, arch, decoder.ffn_size, {}));
  if (!config.moe.has_value() && decoder.ffn_size == 0)
    return DataLoss("[model] " + std::string(arch) + ".feed_forward_length is missing");
  return config;
}

}  // namespace cairn
