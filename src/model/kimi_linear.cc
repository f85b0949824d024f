// Kimi Linear (GGUF architecture "kimi-linear"): Kimi Delta Attention, latent attention without
// positions in some layers; SwiGLU in the first layers, a mixture of experts behind them.
// Everything this architecture is, is here.
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "model/decoder_model.h"
#include "model/kimi_linear_config.h"
#include "model/layers/ffn.h"
#include "model/layers/kda_layer.h"
#include "model/layers/latent_attention_layer.h"
#include "model/reference/architectures.h"
#include "model/registry.h"
#include "model/state_export.h"

namespace cairn {
namespace {

using Mixer = std::variant<LatentAttentionLayer, KdaLayer>;

struct KimiLinearLayer {
  std::vector<float> mixer_norm;  // [hidden]
  Mixer mixer;
  std::vector<float> ffn_norm;  // [hidden]
  Ffn ffn;
};

class KimiLinearModel final : public DecoderModel {
 public:
  static Result<std::unique_ptr<Model>> Load(const ModelFile& file, Weights& weights,
                                             const LoadOptions& options);

  void Forward(const KernelContext& ctx, const ForwardBatch& batch,
               Workspace& workspace) const override {
    const Step step = Begin(ctx, batch, workspace);
    for (const KimiLinearLayer& layer : layers_) {
      Norm(step, layer.mixer_norm);
      std::visit([&](const auto& mixer) { mixer.Forward(step); }, layer.mixer);
      AddBranch(step);
      Norm(step, layer.ffn_norm);
      std::visit([&](const auto& ffn) { ffn.Forward(step); }, layer.ffn);
      AddBranch(step);
    }
    Finish(step, batch);
  }

  std::vector<StateTensor> ExportState(const std::byte* state, std::span<std::byte* const> blocks,
                                       int64_t position) const override;

 private:
  using DecoderModel::DecoderModel;
  Result<KimiLinearLayer> LoadLayer(Weights& weights, const KimiLinearConfig& config, int index,
                                    int& next_part);
  Result<Mixer> LoadMixer(Weights& weights, const KimiLinearConfig& config, int index,
                          int& next_part);

  std::vector<KimiLinearLayer> layers_;
};

Result<ModelPlan> Plan(const KimiLinearConfig& config, KvType kv_type) {
  const size_t conv_floats = KdaLayer::ConvShape(config.delta, config.conv_kernel).state_floats();
  return PlanLayers(config.decoder, [&](int layer, std::vector<StatePart>& parts) {
    // In the order LoadMixer takes them.
    if (config.IsAttention(layer)) {
      parts.push_back({layer, FullKvOf(config.decoder, kv_type)});
    } else {
      parts.push_back({layer, Conv{conv_floats * sizeof(float)}});
      parts.push_back({layer, Recurrent{config.delta.state_floats() * sizeof(float)}});
    }
  });
}

Result<std::unique_ptr<Model>> KimiLinearModel::Load(const ModelFile& file, Weights& weights,
                                                     const LoadOptions& options) {
  ASSIGN_OR_RETURN(const KimiLinearConfig config, ReadKimiLinearConfig(file));
  ASSIGN_OR_RETURN(ModelPlan plan, Plan(config, options.kv_type));
  std::unique_ptr<KimiLinearModel> model(
      new KimiLinearModel(config.decoder, std::move(plan.layout), RopeTable{}, options.kv_type));
  RETURN_IF_ERROR(model->LoadFrame(weights));
  int next_part = 0;
  for (int i = 0; i < config.decoder.layer_count; ++i) {
    ASSIGN_OR_RETURN(KimiLinearLayer layer, model->LoadLayer(weights, config, i, next_part));
    model->layers_.push_back(std::move(layer));
  }
  model->FinishLoad(file, weights, options);
  return std::unique_ptr<Model>(std::move(model));
}

Result<Mixer> KimiLinearModel::LoadMixer(Weights& weights, const KimiLinearConfig& config,
                                         int index, int& next_part) {
  const std::string prefix = "blk." + std::to_string(index) + ".";
  const DecoderConfig& c = config.decoder;
  if (config.IsAttention(index)) {
    const LatentAttentionLayer::Options options{.shape = attention_shape(),
                                                .sizes = config.latent,
                                                .norm_eps = c.norm_eps,
                                                .kv_offset = layout().kv_offset(next_part++)};
    ASSIGN_OR_RETURN(LatentAttentionLayer attention,
                     LatentAttentionLayer::Load(weights, prefix, c.hidden_size, options));
    return Mixer(std::move(attention));
  }
  KdaLayer::Options options{
      .shape = config.delta, .conv_kernel = config.conv_kernel, .norm_eps = c.norm_eps};
  options.conv_offset = layout().state_offset(next_part++);
  options.delta_offset = layout().state_offset(next_part++);
  ASSIGN_OR_RETURN(KdaLayer kda, KdaLayer::Load(weights, prefix, c.hidden_size, options));
  return Mixer(std::move(kda));
}

Result<KimiLinearLayer> KimiLinearModel::LoadLayer(Weights& weights, const KimiLinearConfig& config,
                                                   int index, int& next_part) {
  const std::string prefix = "blk." + std::to_string(index) + ".";
  const DecoderConfig& c = config.decoder;
  ASSIGN_OR_RETURN(auto mixer_norm, weights.Vector(prefix + "attn_norm.weight", c.hidden_size));
  ASSIGN_OR_RETURN(Mixer mixer, LoadMixer(weights, config, index, next_part));
  ASSIGN_OR_RETURN(auto ffn_norm, weights.Vector(prefix + "ffn_norm.weight", c.hidden_size));
  ASSIGN_OR_RETURN(Ffn ffn, LoadFfn(weights, prefix, c.hidden_size, c.ffn_size,
                                    config.HasExperts(index) ? config.moe : std::nullopt));
  std::visit([&](const auto& part) { part.AddNeeds(needs()); }, mixer);
  std::visit([&](const auto& part) { part.AddNeeds(needs()); }, ffn);
  return KimiLinearLayer{std::move(mixer_norm), std::move(mixer), std::move(ffn_norm),
                         std::move(ffn)};
}

std::vector<StateTensor> KimiLinearModel::ExportState(const std::byte* state,
                                                      std::span<std::byte* const> blocks,
                                                      int64_t position) const {
  std::vector<StateTensor> out;
  for (size_t i = 0; i < layers_.size(); ++i) {
    std::vector<StateTensor> tensors;
    if (const auto* attention = std::get_if<LatentAttentionLayer>(&layers_[i].mixer)) {
      const auto& options = attention->options();
      tensors = ExportLatentKv(i, options.shape, options.sizes.latent, options.kv_offset, blocks,
                               position);
    } else {
      const auto& options = std::get<KdaLayer>(layers_[i].mixer).options();
      tensors = ExportGatedDelta(i, options.shape, options.conv_kernel,
                                 reinterpret_cast<const float*>(state + options.conv_offset),
                                 reinterpret_cast<const float*>(state + options.delta_offset));
    }
    std::move(tensors.begin(), tensors.end(), std::back_inserter(out));
  }
  return out;
}

}  // namespace

const Architecture kKimiLinearArchitecture = {
    .name = "kimi-linear",
    .plan = [](const ModelFile& file, KvType kv_type) -> Result<ModelPlan> {
      ASSIGN_OR_RETURN(const KimiLinearConfig config, ReadKimiLinearConfig(file));
      return Plan(config, kv_type);
    },
    .load = KimiLinearModel::Load,
    .load_reference = reference::LoadKimiLinearReference,
    .ignores = [](const ModelFile&, std::string_view) { return false; },
};

}  // namespace cairn
