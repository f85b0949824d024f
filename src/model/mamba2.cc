// Mamba2 (GGUF architecture "mamba2"): one Mamba2 mixer a layer, no attention, no feed-forward
// block, so nothing of its state grows with the context. Everything this architecture is, is here.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/decoder_model.h"
#include "model/layers/mamba2_layer.h"
#include "model/mamba2_config.h"
#include "model/reference/architectures.h"
#include "model/registry.h"
#include "model/state_export.h"

namespace cairn {
namespace {

struct Layer {
  std::vector<float> norm;  // [hidden]
  Mamba2Layer mixer;
};

class Mamba2Model final : public DecoderModel {
 public:
  static Result<std::unique_ptr<Model>> Load(const ModelFile& file, Weights& weights,
                                             const LoadOptions& options);

  void Forward(const KernelContext& ctx, const ForwardBatch& batch,
               Workspace& workspace) const override {
    const Step step = Begin(ctx, batch, workspace);
    for (const Layer& layer : layers_) {
      Norm(step, layer.norm);
      layer.mixer.Forward(step);
      AddBranch(step);
    }
    Finish(step, batch);
  }

  std::vector<StateTensor> ExportState(const std::byte* state, std::span<std::byte* const>,
                                       int64_t) const override {
    std::vector<StateTensor> out;
    for (size_t i = 0; i < layers_.size(); ++i) {
      auto tensors = ExportMamba2(static_cast<int>(i), layers_[i].mixer.options(), state);
      std::move(tensors.begin(), tensors.end(), std::back_inserter(out));
    }
    return out;
  }

 private:
  using DecoderModel::DecoderModel;
  Result<Layer> LoadLayer(Weights& weights, const Mamba2Config& mixer, int index);

  std::vector<Layer> layers_;
};

Result<ModelPlan> Plan(const ModelFile& file, KvType) {
  ASSIGN_OR_RETURN(const DecoderConfig decoder, ReadDecoderFrame(file, "mamba2"));
  ASSIGN_OR_RETURN(const Mamba2Config mixer, ReadMamba2Config(file, "mamba2"));
  return PlanLayers(
      decoder, [&](int layer, std::vector<StatePart>& parts) { mixer.AddParts(layer, parts); });
}

Result<std::unique_ptr<Model>> Mamba2Model::Load(const ModelFile& file, Weights& weights,
                                                 const LoadOptions& options) {
  ASSIGN_OR_RETURN(ModelPlan plan, Plan(file, options.kv_type));
  ASSIGN_OR_RETURN(const Mamba2Config mixer, ReadMamba2Config(file, "mamba2"));
  std::unique_ptr<Mamba2Model> model(
      new Mamba2Model(plan.decoder, std::move(plan.layout), RopeTable{}, options.kv_type));
  RETURN_IF_ERROR(model->LoadFrame(weights));
  for (int i = 0; i < plan.decoder.layer_count; ++i) {
    ASSIGN_OR_RETURN(Layer layer, model->LoadLayer(weights, mixer, i));
    model->layers_.push_back(std::move(layer));
  }
  model->FinishLoad(file, weights, options);
  return std::unique_ptr<Model>(std::move(model));
}

Result<Layer> Mamba2Model::LoadLayer(Weights& weights, const Mamba2Config& mixer, int index) {
  const std::string prefix = "blk." + std::to_string(index) + ".";
  const int64_t hidden = config().hidden_size;
  const Mamba2Layer::Options options{.config = mixer,
                                     .gate = GateOrder::kGateThenNorm,
                                     .norm_eps = config().norm_eps,
                                     .conv_offset = layout().state_offset(2 * index),
                                     .ssm_offset = layout().state_offset(2 * index + 1)};
  ASSIGN_OR_RETURN(auto norm, weights.Vector(prefix + "attn_norm.weight", hidden));
  ASSIGN_OR_RETURN(Mamba2Layer layer, Mamba2Layer::Load(weights, prefix, hidden, options));
  layer.AddNeeds(needs());
  return Layer{std::move(norm), std::move(layer)};
}

}  // namespace

const Architecture kMamba2Architecture = {
    .name = "mamba2",
    .plan = Plan,
    .load = Mamba2Model::Load,
    .load_reference = reference::LoadMamba2Reference,
    .ignores = [](const ModelFile&, std::string_view) { return false; },
};

}  // namespace cairn
