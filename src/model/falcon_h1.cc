// Falcon-H1 (GGUF architecture "falcon-h1"): attention and a Mamba2 mixer side by side in every
// layer, then SwiGLU. Everything this architecture is, is here.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/decoder_model.h"
#include "model/falcon_h1_config.h"
#include "model/layers/attention_layer.h"
#include "model/layers/mamba2_layer.h"
#include "model/layers/swiglu_ffn.h"
#include "model/reference/architectures.h"
#include "model/registry.h"
#include "model/state_export.h"

namespace cairn {
namespace {

constexpr RopePairs kPairs = RopePairs::kHalfSplit;
constexpr int kPartsOfLayer = 3;  // KV, convolution, memory

struct Layer {
  std::vector<float> mixer_norm;  // [hidden]
  Mamba2Layer mamba;
  AttentionLayer attention;
  std::vector<float> ffn_norm;  // [hidden]
  SwiGluFfn ffn;
};

class FalconH1Model final : public DecoderModel {
 public:
  static Result<std::unique_ptr<Model>> Load(const ModelFile& file, Weights& weights,
                                             const LoadOptions& options);

  void Forward(const KernelContext& ctx, const ForwardBatch& batch,
               Workspace& workspace) const override {
    const Step step = Begin(ctx, batch, workspace);
    for (const Layer& layer : layers_) {
      Norm(step, layer.mixer_norm);
      layer.mamba.Forward(step);
      AddBranch(step);
      layer.attention.Forward(step);  // of the same normed rows
      AddBranch(step);
      Norm(step, layer.ffn_norm);
      layer.ffn.Forward(step);
      AddBranch(step);
    }
    Finish(step, batch);
  }

  std::vector<StateTensor> ExportState(const std::byte* state, std::span<std::byte* const> blocks,
                                       int64_t position) const override {
    std::vector<StateTensor> out;
    for (size_t i = 0; i < layers_.size(); ++i) {
      auto kv = ExportKv(static_cast<int>(i), attention_shape(), kPairs,
                         layers_[i].attention.options().kv_offset, blocks, position);
      auto mamba = ExportMamba2(static_cast<int>(i), layers_[i].mamba.options(), state);
      std::move(kv.begin(), kv.end(), std::back_inserter(out));
      std::move(mamba.begin(), mamba.end(), std::back_inserter(out));
    }
    return out;
  }

 private:
  FalconH1Model(FalconH1Config config, StateLayout layout, RopeTable rope, KvType kv_type)
      : DecoderModel(config.decoder, std::move(layout), std::move(rope), kv_type),
        config_(std::move(config)) {}
  Result<Layer> LoadLayer(Weights& weights, int index);
  void ScaleLayer(Layer& layer) const;

  const FalconH1Config config_;
  std::vector<Layer> layers_;
};

Result<ModelPlan> Plan(const FalconH1Config& config, KvType kv_type) {
  return PlanLayers(config.decoder, [&](int layer, std::vector<StatePart>& parts) {
    parts.push_back({layer, FullKvOf(config.decoder, kv_type)});
    config.mixer.AddParts(layer, parts);
  });
}

Result<std::unique_ptr<Model>> FalconH1Model::Load(const ModelFile& file, Weights& weights,
                                                   const LoadOptions& options) {
  ASSIGN_OR_RETURN(FalconH1Config config, ReadFalconH1Config(file));
  ASSIGN_OR_RETURN(ModelPlan plan, Plan(config, options.kv_type));
  ASSIGN_OR_RETURN(RopeTable rope, LoadRopeTable(weights, config.decoder.rope, kPairs,
                                                 ContextInForce(config.decoder, options)));
  std::unique_ptr<FalconH1Model> model(new FalconH1Model(std::move(config), std::move(plan.layout),
                                                         std::move(rope), options.kv_type));
  RETURN_IF_ERROR(model->LoadFrame(weights));
  for (int i = 0; i < plan.decoder.layer_count; ++i) {
    ASSIGN_OR_RETURN(Layer layer, model->LoadLayer(weights, i));
    model->layers_.push_back(std::move(layer));
  }
  model->FinishLoad(file, weights, options);
  return std::unique_ptr<Model>(std::move(model));
}

Result<Layer> FalconH1Model::LoadLayer(Weights& weights, int index) {
  const std::string prefix = "blk." + std::to_string(index) + ".";
  const DecoderConfig& c = config();
  const int part = index * kPartsOfLayer;
  const AttentionLayer::Options attention{.shape = attention_shape(),
                                          .kv_offset = layout().kv_offset(part)};
  const Mamba2Layer::Options mamba{.config = config_.mixer,
                                   .gate = config_.gate,
                                   .norm_eps = c.norm_eps,
                                   .conv_offset = layout().state_offset(part + 1),
                                   .ssm_offset = layout().state_offset(part + 2)};
  // The converter forgets ".weight" in the name of this one norm.
  const std::string ffn_norm_name =
      weights.Has(prefix + "ffn_norm") ? prefix + "ffn_norm" : prefix + "ffn_norm.weight";
  ASSIGN_OR_RETURN(auto mixer_norm, weights.Vector(prefix + "attn_norm.weight", c.hidden_size));
  ASSIGN_OR_RETURN(Mamba2Layer mamba_layer,
                   Mamba2Layer::Load(weights, prefix, c.hidden_size, mamba));
  ASSIGN_OR_RETURN(AttentionLayer attention_layer,
                   AttentionLayer::Load(weights, prefix, c.hidden_size, attention, {}));
  ASSIGN_OR_RETURN(auto ffn_norm, weights.Vector(ffn_norm_name, c.hidden_size));
  ASSIGN_OR_RETURN(SwiGluFfn ffn, SwiGluFfn::Load(weights, prefix, c.hidden_size, c.ffn_size));
  mamba_layer.AddNeeds(needs());
  attention_layer.AddNeeds(needs());
  ffn.AddNeeds(needs());
  Layer layer{std::move(mixer_norm), std::move(mamba_layer), std::move(attention_layer),
              std::move(ffn_norm), std::move(ffn)};
  ScaleLayer(layer);
  return layer;
}

// A factor on the input of a projection without bias is one on its output.
void FalconH1Model::ScaleLayer(Layer& layer) const {
  const FalconH1Factors& f = config_.factors;
  layer.mamba.Scale({.z = f.ssm_in * f.ssm[0],
                     .x = f.ssm_in * f.ssm[1],
                     .b = f.ssm_in * f.ssm[2],
                     .c = f.ssm_in * f.ssm[3],
                     .dt = f.ssm_in * f.ssm[4],
                     .out = f.ssm_out});
  layer.attention.Scale(f.attention_in, f.attention_in * f.key, f.attention_in * f.value,
                        f.attention_out);
  layer.ffn.Scale(f.mlp[0], f.mlp[1]);
}

}  // namespace

const Architecture kFalconH1Architecture = {
    .name = "falcon-h1",
    .plan = [](const ModelFile& file, KvType kv_type) -> Result<ModelPlan> {
      ASSIGN_OR_RETURN(const FalconH1Config config, ReadFalconH1Config(file));
      return Plan(config, kv_type);
    },
    .load = FalconH1Model::Load,
    .load_reference = reference::LoadFalconH1Reference,
    .ignores = [](const ModelFile&, std::string_view) { return false; },
};

}  // namespace cairn
