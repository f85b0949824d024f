#include "model/granite_hybrid_config.h"

namespace cairn {

constexpr std::string_view kArch = "granitehybrid";

static Result<std::optional<MoeConfig>> ReadMoe(const ModelFile& file, int expert_ffn) {
  ASSIGN_OR_RETURN(const int experts, ReadSize(file, kArch, "expert_count", 0, 1 << 16, 0));
  if (experts == 0) return std::optional<MoeConfig>();
  MoeConfig moe;
  ASSIGN_OR_RETURN(const int used, ReadSize(file, kArch, "expert_used_count", 1, experts));
  ASSIGN_OR_RETURN(const int shared,
                   ReadSize(file, kArch, "expert_shared_feed_forward_length", 0, 1 << 20, 0));
  // The softmax of the chosen logits alone is the softmax of all, renormalised over the chosen.
  moe.router = {.experts = experts,
                .used = used,
                .gate = RouterGate::kSoftmax,
                .renormalise = true,
                .denominator_add = 0,
                .scale = 1};
  moe.expert_ffn = expert_ffn;
  moe.shared_ffn = shared;
  return std::optional<MoeConfig>(moe);
}

Result<GraniteHybridConfig> ReadGraniteHybridConfig(const ModelFile& file) {
  GraniteHybridConfig config;
  DecoderConfig& decoder = config.decoder;
  ASSIGN_OR_RETURN(decoder, ReadDecoderConfig(file, kArch));
  ASSIGN_OR_RETURN(config.mixer, ReadMamba2Config(file, kArch));
  ASSIGN_OR_RETURN(config.moe, ReadMoe(file, decoder.ffn_size));
  ASSIGN_OR_RETURN(decoder.embedding_scale, ReadFactor(file, kArch, "embedding_scale", 1));
  ASSIGN_OR_RETURN(decoder.residual_scale, ReadFactor(file, kArch, "residual_scale", 1));
  ASSIGN_OR_RETURN(const float logits_scaling, ReadFactor(file, kArch, "logit_scale", 1));
  decoder.logit_scale = static_cast<float>(1.0 / static_cast<double>(logits_scaling));
  if (file.Has("granitehybrid.attention.scale")) {
    ASSIGN_OR_RETURN(decoder.attention_scale, ReadFactor(file, kArch, "attention.scale", 1));
  }
  // The converter's switch for rotary positions, whatever the key's name says.
  ASSIGN_OR_RETURN(config.rotary, file.GetBoolOr("granitehybrid.rope.scaling.finetuned", true));
  return config;
}

}  // namespace cairn
