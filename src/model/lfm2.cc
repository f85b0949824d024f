// LFM2 and LFM2-MoE (GGUF architectures "lfm2", "lfm2moe"): gated short convolutions and full
// attention with q/k norms; SwiGLU, or a mixture of experts behind the first layers. Everything
// these architectures are, is here.
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "model/decoder_model.h"
#include "model/layers/attention_layer.h"
#include "model/layers/ffn.h"
#include "model/layers/short_conv_layer.h"
#include "model/lfm2_config.h"
#include "model/reference/architectures.h"
#include "model/registry.h"
#include "model/state_export.h"

namespace cairn {
namespace {

using Mixer = std::variant<AttentionLayer, ShortConvLayer>;

struct Lfm2Layer {
  std::vector<float> mixer_norm;  // [hidden]
  Mixer mixer;
  std::vector<float> ffn_norm;  // [hidden]
  Ffn ffn;
};

class Lfm2Model final : public DecoderModel {
 public:
  static Result<std::unique_ptr<Model>> Load(const ModelFile& file, Weights& weights,
                                             const LoadOptions& options);

  void Forward(const KernelContext& ctx, const ForwardBatch& batch,
               Workspace& workspace) const override {
    const Step step = Begin(ctx, batch, workspace);
    for (const Lfm2Layer& layer : layers_) {
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
  Result<Lfm2Layer> LoadLayer(Weights& weights, const Lfm2Config& config, int index);
  Result<Mixer> LoadMixer(Weights& weights, const Lfm2Config& config, int index);

  std::vector<Lfm2Layer> layers_;
};

ShortConvShape ConvShape(const Lfm2Config& config) {
  return {.channels = config.decoder.hidden_size, .kernel = config.conv_kernel};
}

// One part a layer, in order.
Result<ModelPlan> Plan(const Lfm2Config& config, KvType kv_type) {
  return PlanLayers(config.decoder, [&](int layer, std::vector<StatePart>& parts) {
    if (config.IsAttention(layer)) {
      parts.push_back({layer, FullKvOf(config.decoder, kv_type)});
    } else {
      parts.push_back({layer, Conv{ConvShape(config).state_floats() * sizeof(float)}});
    }
  });
}

Result<std::unique_ptr<Model>> Lfm2Model::Load(const ModelFile& file, Weights& weights,
                                               const LoadOptions& options) {
  ASSIGN_OR_RETURN(const Lfm2Config config, ReadLfm2Config(file));
  ASSIGN_OR_RETURN(ModelPlan plan, Plan(config, options.kv_type));
  ASSIGN_OR_RETURN(RopeTable rope,
                   LoadRopeTable(weights, config.decoder.rope, RopePairs::kHalfSplit,
                                 ContextInForce(config.decoder, options)));
  std::unique_ptr<Lfm2Model> model(
      new Lfm2Model(config.decoder, std::move(plan.layout), std::move(rope), options.kv_type));
  RETURN_IF_ERROR(model->LoadFrame(weights, kLfm2FinalNorm));
  for (int i = 0; i < config.decoder.layer_count; ++i) {
    ASSIGN_OR_RETURN(Lfm2Layer layer, model->LoadLayer(weights, config, i));
    model->layers_.push_back(std::move(layer));
  }
  model->FinishLoad(file, weights, options);
  return std::unique_ptr<Model>(std::move(model));
}

Result<Mixer> Lfm2Model::LoadMixer(Weights& weights, const Lfm2Config& config, int index) {
  const std::string prefix = "blk." + std::to_string(index) + ".";
  const DecoderConfig& c = config.decoder;
  if (!config.IsAttention(index)) {
    ASSIGN_OR_RETURN(ShortConvLayer conv,
                     ShortConvLayer::Load(weights, prefix, c.hidden_size,
                                          {.shape = ConvShape(config),
                                           .conv_offset = layout().state_offset(index)}));
    return Mixer(std::move(conv));
  }
  ASSIGN_OR_RETURN(AttentionLayer::HeadNorms norms,
                   AttentionLayer::LoadHeadNorms(weights, prefix, c.head_dim, c.norm_eps));
  const AttentionLayer::Options options{.shape = attention_shape(),
                                        .kv_offset = layout().kv_offset(index)};
  ASSIGN_OR_RETURN(AttentionLayer attention,
                   AttentionLayer::Load(weights, prefix, c.hidden_size, options, std::move(norms)));
  return Mixer(std::move(attention));
}

Result<Lfm2Layer> Lfm2Model::LoadLayer(Weights& weights, const Lfm2Config& config, int index) {
  const std::string prefix = "blk." + std::to_string(index) + ".";
  const DecoderConfig& c = config.decoder;
  ASSIGN_OR_RETURN(auto mixer_norm, weights.Vector(prefix + "attn_norm.weight", c.hidden_size));
  ASSIGN_OR_RETURN(Mixer mixer, LoadMixer(weights, config, index));
  ASSIGN_OR_RETURN(auto ffn_norm, weights.Vector(prefix + "ffn_norm.weight", c.hidden_size));
  ASSIGN_OR_RETURN(Ffn ffn, LoadFfn(weights, prefix, c.hidden_size, c.ffn_size,
                                    config.HasExperts(index) ? config.moe : std::nullopt));
  std::visit([&](const auto& part) { part.AddNeeds(needs()); }, mixer);
  std::visit([&](const auto& part) { part.AddNeeds(needs()); }, ffn);
  return Lfm2Layer{std::move(mixer_norm), std::move(mixer), std::move(ffn_norm), std::move(ffn)};
}

std::vector<StateTensor> Lfm2Model::ExportState(const std::byte* state,
                                                std::span<std::byte* const> blocks,
                                                int64_t position) const {
  std::vector<StateTensor> out;
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (const auto* attention = std::get_if<AttentionLayer>(&layers_[i].mixer)) {
      auto tensors = ExportKv(i, attention_shape(), RopePairs::kHalfSplit,
                              attention->options().kv_offset, blocks, position);
      std::move(tensors.begin(), tensors.end(), std::back_inserter(out));
      continue;
    }
    const auto& options = std::get<ShortConvLayer>(layers_[i].mixer).options();
    const auto* conv = reinterpret_cast<const float*>(state + options.conv_offset);
    out.push_back({"layer" + std::to_string(i) + "_conv",
                   {options.shape.kernel - 1, options.shape.channels},
                   {conv, conv + options.shape.state_floats()}});
  }
  return out;
}

constexpr Architecture Named(std::string_view name) {
  return {
      .name = name,
      .plan = [](const ModelFile& file, KvType kv_type) -> Result<ModelPlan> {
        ASSIGN_OR_RETURN(const Lfm2Config config, ReadLfm2Config(file));
        return Plan(config, kv_type);
      },
      .load = Lfm2Model::Load,
      .load_reference = reference::LoadLfm2Reference,
      .ignores = [](const ModelFile&, std::string_view) { return false; },
  };
}

}  // namespace

const Architecture kLfm2Architecture = Named("lfm2");
const Architecture kLfm2MoeArchitecture = Named("lfm2moe");

}  // namespace cairn
