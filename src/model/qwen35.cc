// Qwen3.5 and Qwen3-Next (GGUF architectures "qwen35", "qwen35moe", "qwen3next"): Gated DeltaNet
// layers, gated full attention in every n-th, SwiGLU or a mixture of experts everywhere. Everything
// these architectures are, is here.
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "model/decoder_model.h"
#include "model/layers/attention_layer.h"
#include "model/layers/ffn.h"
#include "model/layers/gated_delta_layer.h"
#include "model/qwen35_config.h"
#include "model/reference/architectures.h"
#include "model/registry.h"
#include "model/state_export.h"

namespace cairn {
namespace {

struct Qwen35Layer {
  std::vector<float> mixer_norm;  // [hidden]
  std::variant<AttentionLayer, GatedDeltaLayer> mixer;
  std::vector<float> ffn_norm;  // [hidden]
  Ffn ffn;
};

class Qwen35Model final : public DecoderModel {
 public:
  static Result<std::unique_ptr<Model>> Load(const ModelFile& file, Weights& weights,
                                             const LoadOptions& options);

  void Forward(const KernelContext& ctx, const ForwardBatch& batch,
               Workspace& workspace) const override {
    const Step step = Begin(ctx, batch, workspace);
    for (const Qwen35Layer& layer : layers_) {
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
  Result<Qwen35Layer> LoadLayer(Weights& weights, const Qwen35Config& config, int index,
                                int& next_part);

  std::vector<Qwen35Layer> layers_;
};

Result<ModelPlan> Plan(const Qwen35Config& config, KvType kv_type) {
  const size_t conv_floats =
      GatedDeltaLayer::ConvShape(config.delta, config.conv_kernel).state_floats();
  return PlanLayers(config.decoder, [&](int layer, std::vector<StatePart>& parts) {
    // In the order LoadLayer takes them.
    if (config.IsAttention(layer)) {
      parts.push_back({layer, FullKvOf(config.decoder, kv_type)});
    } else {
      parts.push_back({layer, Conv{conv_floats * sizeof(float)}});
      parts.push_back({layer, Recurrent{config.delta.state_floats() * sizeof(float)}});
    }
  });
}

Result<std::unique_ptr<Model>> Qwen35Model::Load(const ModelFile& file, Weights& weights,
                                                 const LoadOptions& options) {
  ASSIGN_OR_RETURN(const Qwen35Config config, ReadQwen35Config(file));
  ASSIGN_OR_RETURN(ModelPlan plan, Plan(config, options.kv_type));
  std::unique_ptr<Qwen35Model> model(
      new Qwen35Model(config.decoder, std::move(plan.layout),
                      MakeRopeTable(config.decoder.rope, RopePairs::kHalfSplit), options.kv_type));
  RETURN_IF_ERROR(model->LoadFrame(weights));
  int next_part = 0;
  for (int i = 0; i < config.decoder.layer_count; ++i) {
    ASSIGN_OR_RETURN(Qwen35Layer layer, model->LoadLayer(weights, config, i, next_part));
    model->layers_.push_back(std::move(layer));
  }
  model->FinishLoad(file, weights, options);
  return std::unique_ptr<Model>(std::move(model));
}

Result<Qwen35Layer> Qwen35Model::LoadLayer(Weights& weights, const Qwen35Config& config, int index,
                                           int& next_part) {
  const std::string prefix = "blk." + std::to_string(index) + ".";
  const DecoderConfig& c = config.decoder;
  const auto load_attention = [&]() -> Result<AttentionLayer> {
    ASSIGN_OR_RETURN(AttentionLayer::HeadNorms norms,
                     AttentionLayer::LoadHeadNorms(weights, prefix, c.head_dim, c.norm_eps));
    const AttentionLayer::Options options{.shape = attention_shape(),
                                          .gate = OutputGate::kSigmoid,
                                          .kv_offset = layout().kv_offset(next_part++)};
    return AttentionLayer::Load(weights, prefix, c.hidden_size, options, std::move(norms));
  };
  const auto load_delta = [&]() -> Result<GatedDeltaLayer> {
    GatedDeltaLayer::Options options{.shape = config.delta,
                                     .conv_kernel = config.conv_kernel,
                                     .norm_eps = c.norm_eps,
                                     .gate_rows = config.gate_rows};
    options.conv_offset = layout().state_offset(next_part++);
    options.delta_offset = layout().state_offset(next_part++);
    return GatedDeltaLayer::Load(weights, prefix, c.hidden_size, options);
  };
  const auto load_mixer = [&]() -> Result<std::variant<AttentionLayer, GatedDeltaLayer>> {
    using Mixer = std::variant<AttentionLayer, GatedDeltaLayer>;
    if (config.IsAttention(index)) {
      ASSIGN_OR_RETURN(AttentionLayer attention, load_attention());
      attention.AddNeeds(needs());
      return Mixer(std::move(attention));
    }
    ASSIGN_OR_RETURN(GatedDeltaLayer delta, load_delta());
    delta.AddNeeds(needs());
    return Mixer(std::move(delta));
  };
  ASSIGN_OR_RETURN(auto mixer_norm, weights.Vector(prefix + "attn_norm.weight", c.hidden_size));
  ASSIGN_OR_RETURN(auto mixer, load_mixer());
  ASSIGN_OR_RETURN(auto ffn_norm,
                   weights.Vector(prefix + "post_attention_norm.weight", c.hidden_size));
  ASSIGN_OR_RETURN(Ffn ffn, LoadFfn(weights, prefix, c.hidden_size, c.ffn_size, config.moe));
  std::visit([&](const auto& block) { block.AddNeeds(needs()); }, ffn);
  return Qwen35Layer{std::move(mixer_norm), std::move(mixer), std::move(ffn_norm), std::move(ffn)};
}

std::vector<StateTensor> Qwen35Model::ExportState(const std::byte* state,
                                                  std::span<std::byte* const> blocks,
                                                  int64_t position) const {
  std::vector<StateTensor> out;
  for (size_t i = 0; i < layers_.size(); ++i) {
    std::vector<StateTensor> tensors;
    if (const auto* attention = std::get_if<AttentionLayer>(&layers_[i].mixer)) {
      tensors = ExportKv(i, attention_shape(), RopePairs::kHalfSplit,
                         attention->options().kv_offset, blocks, position);
    } else {
      const auto& options = std::get<GatedDeltaLayer>(layers_[i].mixer).options();
      tensors = ExportGatedDelta(i, options.shape, options.conv_kernel,
                                 reinterpret_cast<const float*>(state + options.conv_offset),
                                 reinterpret_cast<const float*>(state + options.delta_offset));
    }
    std::move(tensors.begin(), tensors.end(), std::back_inserter(out));
  }
  return out;
}

bool IsPredictionTensor(const ModelFile& file, std::string_view name) {
  const auto config = ReadQwen35Config(file);
  return config.ok() && LiesBehindLayers(name, config->decoder.layer_count);
}

constexpr Architecture Named(std::string_view name) {
  return {
      .name = name,
      .plan = [](const ModelFile& file, KvType kv_type) -> Result<ModelPlan> {
        ASSIGN_OR_RETURN(const Qwen35Config config, ReadQwen35Config(file));
        return Plan(config, kv_type);
      },
      .load = Qwen35Model::Load,
      .load_reference = reference::LoadQwen35Reference,
      .ignores = IsPredictionTensor,
  };
}

}  // namespace

const Architecture kQwen35Architecture = Named("qwen35");
const Architecture kQwen35MoeArchitecture = Named("qwen35moe");
const Architecture kQwen3NextArchitecture = Named("qwen3next");

}  // namespace cairn
