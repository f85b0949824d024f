// Granite 4.0 H (GGUF architecture "granitehybrid"): Mamba2 layers, full attention without
// positions in a few, SwiGLU or a mixture of experts everywhere. Everything this architecture is,
// is here.
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "model/decoder_model.h"
#include "model/granite_hybrid_config.h"
#include "model/layers/attention_layer.h"
#include "model/layers/ffn.h"
#include "model/layers/mamba2_layer.h"
#include "model/reference/architectures.h"
#include "model/registry.h"
#include "model/state_export.h"

namespace cairn {
namespace {

// The converter permutes the rows of q and k as if there were a rotation.
constexpr RopePairs kPairs = RopePairs::kInterleaved;

using Mixer = std::variant<AttentionLayer, Mamba2Layer>;

struct Layer {
  std::vector<float> mixer_norm;  // [hidden]
  Mixer mixer;
  std::vector<float> ffn_norm;  // [hidden]
  Ffn ffn;
};

class GraniteHybridModel final : public DecoderModel {
 public:
  static Result<std::unique_ptr<Model>> Load(const ModelFile& file, Weights& weights,
                                             const LoadOptions& options);

  void Forward(const KernelContext& ctx, const ForwardBatch& batch,
               Workspace& workspace) const override {
    const Step step = Begin(ctx, batch, workspace);
    for (const Layer& layer : layers_) {
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
  GraniteHybridModel(GraniteHybridConfig config, StateLayout layout, RopeTable rope, KvType kv_type)
      : DecoderModel(config.decoder, std::move(layout), std::move(rope), kv_type),
        config_(std::move(config)) {}
  Result<Layer> LoadLayer(Weights& weights, int index, int& next_part);
  Result<Mixer> LoadMixer(Weights& weights, int index, int& next_part);

  const GraniteHybridConfig config_;
  std::vector<Layer> layers_;
};

Result<ModelPlan> Plan(const GraniteHybridConfig& config, KvType kv_type) {
  return PlanLayers(config.decoder, [&](int layer, std::vector<StatePart>& parts) {
    // In the order LoadMixer takes them.
    if (config.IsAttention(layer)) {
      parts.push_back({layer, FullKvOf(config.decoder, kv_type)});
    } else {
      config.mixer.AddParts(layer, parts);
    }
  });
}

Result<std::unique_ptr<Model>> GraniteHybridModel::Load(const ModelFile& file, Weights& weights,
                                                        const LoadOptions& options) {
  ASSIGN_OR_RETURN(GraniteHybridConfig config, ReadGraniteHybridConfig(file));
  ASSIGN_OR_RETURN(ModelPlan plan, Plan(config, options.kv_type));
  RopeTable rope;
  if (config.rotary) {
    ASSIGN_OR_RETURN(rope, LoadRopeTable(weights, config.decoder.rope, kPairs,
                                         ContextInForce(config.decoder, options)));
  }
  std::unique_ptr<GraniteHybridModel> model(new GraniteHybridModel(
      std::move(config), std::move(plan.layout), std::move(rope), options.kv_type));
  RETURN_IF_ERROR(model->LoadFrame(weights));
  int next_part = 0;
  for (int i = 0; i < plan.decoder.layer_count; ++i) {
    ASSIGN_OR_RETURN(Layer layer, model->LoadLayer(weights, i, next_part));
    model->layers_.push_back(std::move(layer));
  }
  model->FinishLoad(file, weights, options);
  return std::unique_ptr<Model>(std::move(model));
}

Result<Layer> GraniteHybridModel::LoadLayer(Weights& weights, int index, int& next_part) {
  const std::string prefix = "blk." + std::to_string(index) + ".";
  const int64_t hidden = config().hidden_size;
  ASSIGN_OR_RETURN(auto mixer_norm, weights.Vector(prefix + "attn_norm.weight", hidden));
  ASSIGN_OR_RETURN(Mixer mixer, LoadMixer(weights, index, next_part));
  ASSIGN_OR_RETURN(auto ffn_norm, weights.Vector(prefix + "ffn_norm.weight", hidden));
  ASSIGN_OR_RETURN(Ffn ffn, LoadFfn(weights, prefix, hidden, config().ffn_size, config_.moe));
  std::visit([&](const auto& layer) { layer.AddNeeds(needs()); }, mixer);
  std::visit([&](const auto& layer) { layer.AddNeeds(needs()); }, ffn);
  return Layer{std::move(mixer_norm), std::move(mixer), std::move(ffn_norm), std::move(ffn)};
}

Result<Mixer> GraniteHybridModel::LoadMixer(Weights& weights, int index, int& next_part) {
  const std::string prefix = "blk." + std::to_string(index) + ".";
  const DecoderConfig& c = config();
  if (config_.IsAttention(index)) {
    const AttentionLayer::Options options{
        .shape = attention_shape(),
        .kv_offset = layout().kv_offset(next_part++),
        .positions = config_.rotary ? Positions::kRotary : Positions::kNone};
    ASSIGN_OR_RETURN(AttentionLayer attention,
                     AttentionLayer::Load(weights, prefix, c.hidden_size, options, {}));
    return Mixer(std::move(attention));
  }
  Mamba2Layer::Options options{
      .config = config_.mixer, .gate = GateOrder::kGateThenNorm, .norm_eps = c.norm_eps};
  options.conv_offset = layout().state_offset(next_part++);
  options.ssm_offset = layout().state_offset(next_part++);
  ASSIGN_OR_RETURN(Mamba2Layer mamba, Mamba2Layer::Load(weights, prefix, c.hidden_size, options));
  return Mixer(std::move(mamba));
}

std::vector<StateTensor> GraniteHybridModel::ExportState(const std::byte* state,
                                                         std::span<std::byte* const> blocks,
                                                         int64_t position) const {
  std::vector<StateTensor> out;
  for (size_t i = 0; i < layers_.size(); ++i) {
    std::vector<StateTensor> tensors;
    if (const auto* attention = std::get_if<AttentionLayer>(&layers_[i].mixer)) {
      tensors = ExportKv(static_cast<int>(i), attention_shape(), kPairs,
                         attention->options().kv_offset, blocks, position);
    } else {
      tensors = ExportMamba2(static_cast<int>(i), std::get<Mamba2Layer>(layers_[i].mixer).options(),
                             state);
    }
    std::move(tensors.begin(), tensors.end(), std::back_inserter(out));
  }
  return out;
}

}  // namespace

const Architecture kGraniteHybridArchitecture = {
    .name = "granitehybrid",
    .plan = [](const ModelFile& file, KvType kv_type) -> Result<ModelPlan> {
      ASSIGN_OR_RETURN(const GraniteHybridConfig config, ReadGraniteHybridConfig(file));
      return Plan(config, kv_type);
    },
    .load = GraniteHybridModel::Load,
    .load_reference = reference::LoadGraniteHybridReference,
    .ignores = [](const ModelFile&, std::string_view) { return false; },
};

}  // namespace cairn
