// The model types of Hugging Face that have a GGUF architecture here. To add one: write its file
// with an HfAdapter, name it in adapters.cc.
//
// Threads: constants and pure functions.
#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/hf/hf_builder.h"

namespace cairn {

struct HfAdapter {
  std::string_view model_type;    // of config.json, or of its text_config
  std::string_view class_name;    // in `architectures`, where a model_type is missing
  std::string_view architecture;  // general.architecture of GGUF
  Status (*build)(HfBuilder& builder);
  // Where config.json decides between two; else null.
  std::string_view (*choose_architecture)(const JsonValue& config) = nullptr;
};

// Errors: Unsupported, listing the known ones.
Result<const HfAdapter*> FindHfAdapter(const JsonValue& config);
std::span<const HfAdapter> HfAdapters();

// --- Shared by adapters.
// Sizes, norms, context.
Status SetDecoderKeys(HfBuilder& builder);
// The same where `layers` does not stand in num_hidden_layers.
Status SetDecoderKeys(HfBuilder& builder, int64_t layers);
// layer_types in the names of newer configs ("mamba" is "linear_attention", "attention"
// "full_attention"); empty if absent. Errors: DataLoss unless each of `layers` layers has one.
Result<std::vector<std::string>> ReadLayerTypes(const HfBuilder& builder, int64_t layers);
std::string_view LayerTypeName(std::string_view name);  // the newer name
// n where every n-th layer is one of those and no other is; 0 if there is no such n.
int64_t IntervalOf(const std::vector<bool>& layers);
// Attention heads; returns their dimension. Per-layer numbers of KV heads (0: no attention) or
// none.
Result<int64_t> SetHeadKeys(HfBuilder& builder, const std::vector<int64_t>& layer_kv_heads);
// rope_parameters, or rope_theta and rope_scaling.
Status SetRopeKeys(HfBuilder& builder, int64_t head_dim);
// token_embd, output (unless tied), and the final norm under its GGUF name.
Status MapFrame(HfBuilder& builder, std::string_view norm, HfValue norm_value,
                const std::string& norm_to = "output_norm.weight");
// NotFound if config.json promises biases under `key` (or does so by saying nothing, where
// `fallback` is true) and one of FROM PART.bias is missing.
Status ExpectBiases(const HfBuilder& builder, std::string_view key, bool fallback,
                    const std::string& from, std::initializer_list<const char*> parts);
// ffn_gate, ffn_up, ffn_down of `to` from `from`gate_proj and so on.
Status MapSwiGlu(HfBuilder& builder, const std::string& to, const std::string& from);
// What a model calls the parts of an expert; a fused tensor holds gate rows, then up rows.
struct ExpertNames {
  const char* gate = "gate_proj";  // "": experts have none
  const char* up = "up_proj";
  const char* down = "down_proj";
  const char* fused = "experts.gate_up_proj";  // "": never
  const char* fused_down = "experts.down_proj";
};
// ffn_gate_exps, ffn_up_exps, ffn_down_exps of `to` from below `from`.
Status MapExperts(HfBuilder& builder, const std::string& to, const std::string& from,
                  const ExpertNames& names, int64_t experts, int64_t ffn);
// Of Qwen's mixtures: keys; router, experts and shared expert of a layer.
Status SetExpertKeys(HfBuilder& builder);
Status MapExpertFfn(HfBuilder& builder, const std::string& to, const std::string& from);
struct Mamba2Sizes {
  int64_t heads = 0, head_dim = 0, state = 0, groups = 1, conv = 4;
};
// mamba_d_head, or where it is "auto" the share of a head in the inner width: mamba_d_ssm, else
// mamba_expand x hidden_size.
Result<int64_t> ReadMamba2HeadDim(const HfBuilder& builder, int64_t heads);
Status SetMamba2Keys(HfBuilder& builder, const Mamba2Sizes& sizes);
Status MapMamba2(HfBuilder& builder, const std::string& to, const std::string& from,
                 int64_t groups);
// "blk.3."
std::string BlockName(int64_t layer);
std::string LayerName(int64_t layer);  // "layers.3."

Status BuildFalconH1(HfBuilder& builder);
Status BuildGemma3(HfBuilder& builder);
Status BuildGraniteHybrid(HfBuilder& builder);
Status BuildKimiLinear(HfBuilder& builder);
Status BuildLfm2(HfBuilder& builder);
Status BuildLlama(HfBuilder& builder);
Status BuildMamba2(HfBuilder& builder);
Status BuildMixtral(HfBuilder& builder);
Status BuildNemotronH(HfBuilder& builder);
// Of GGUF: with or without experts.
std::string_view NemotronHArchitecture(const JsonValue& config);
Status BuildQwen(HfBuilder& builder);
Status BuildQwen35(HfBuilder& builder);

}  // namespace cairn
