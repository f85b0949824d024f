// Nemotron-H (GGUF architectures "nemotron_h" and "nemotron_h_moe"): one block a layer, a Mamba2
// mixer with a norm over groups, attention without positions, or a feed-forward block with squared
// ReLU, in the second with experts. Everything this architecture is, is here.
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "model/decoder_model.h"
#include "model/layers/attention_layer.h"
#include "model/layers/mamba2_layer.h"
#include "model/layers/moe_ffn.h"
#include "model/layers/relu2_ffn.h"
#include "model/nemotron_h_config.h"
#include "model/reference/architectures.h"
#include "model/registry.h"
#include "model/state_export.h"

namespace cairn {
namespace {

// The converter permutes the rows of q and k as if there were a rotation.
constexpr RopePairs kPairs = RopePairs::kInterleaved;

using Block = std::variant<Mamba2Layer, AttentionLayer, Relu2Ffn, MoeFfn>;

struct Layer {
  std::vector<float> norm;  // [hidden]
  Block block;
};

class NemotronHModel final : public DecoderModel {
 public:
  static Result<std::unique_ptr<Model>> Load(const ModelFile& file, Weights& weights,
                                             const LoadOptions& options);

  void Forward(const KernelContext& ctx, const ForwardBatch& batch,
               Workspace& workspace) const override {
    const Step step = Begin(ctx, batch, workspace);
    for (const Layer& layer : layers_) {
      Norm(step, layer.norm);
      std::visit([&](const auto& block) { block.Forward(step); }, layer.block);
      AddBranch(step);
    }
    Finish(step, batch);
  }

  std::vector<StateTensor> ExportState(const std::byte* state, std::span<std::byte* const> blocks,
                                       int64_t position) const override;

 private:
  using DecoderModel::DecoderModel;
  Result<Block> LoadBlock(Weights& weights, const NemotronHConfig& config, int index,
                          int& next_part);

  std::vector<Layer> layers_;
};

Result<ModelPlan> Plan(const NemotronHConfig& config, KvType kv_type) {
  return PlanLayers(config.decoder, [&](int layer, std::vector<StatePart>& parts) {
    // In the order LoadBlock takes them.
    switch (config.blocks[layer]) {
      case NemotronBlock::kMamba:
        return config.mixer.AddParts(layer, parts);
      case NemotronBlock::kAttention:
        return parts.push_back({layer, FullKvOf(config.decoder, kv_type)});
      case NemotronBlock::kFfn:
        return;
    }
  });
}

Result<std::unique_ptr<Model>> NemotronHModel::Load(const ModelFile& file, Weights& weights,
                                                    const LoadOptions& options) {
  ASSIGN_OR_RETURN(const NemotronHConfig config, ReadNemotronHConfig(file));
  ASSIGN_OR_RETURN(ModelPlan plan, Plan(config, options.kv_type));
  std::unique_ptr<NemotronHModel> model(
      new NemotronHModel(config.decoder, std::move(plan.layout), RopeTable{}, options.kv_type));
  RETURN_IF_ERROR(model->LoadFrame(weights));
  int next_part = 0;
  for (int i = 0; i < config.decoder.layer_count; ++i) {
    ASSIGN_OR_RETURN(auto norm, weights.Vector("blk." + std::to_string(i) + ".attn_norm.weight",
                                               config.decoder.hidden_size));
    ASSIGN_OR_RETURN(Block block, model->LoadBlock(weights, config, i, next_part));
    std::visit([&](const auto& layer) { layer.AddNeeds(model->needs()); }, block);
    model->layers_.push_back({std::move(norm), std::move(block)});
  }
  model->FinishLoad(file, weights, options);
  return std::unique_ptr<Model>(std::move(model));
}

Result<Block> NemotronHModel::LoadBlock(Weights& weights, const NemotronHConfig& config, int index,
                                        int& next_part) {
  const std::string prefix = "blk." + std::to_string(index) + ".";
  const int64_t hidden = config.decoder.hidden_size;
  switch (config.blocks[index]) {
    case NemotronBlock::kAttention: {
      const AttentionLayer::Options options{.shape = attention_shape(),
                                            .kv_offset = layout().kv_offset(next_part++),
                                            .positions = Positions::kNone};
      ASSIGN_OR_RETURN(AttentionLayer attention,
                       AttentionLayer::Load(weights, prefix, hidden, options, {}));
      return Block(std::move(attention));
    }
    case NemotronBlock::kFfn: {
      if (config.moe.has_value()) {
        ASSIGN_OR_RETURN(MoeFfn moe, MoeFfn::Load(weights, prefix, hidden, *config.moe));
        return Block(std::move(moe));
      }
      ASSIGN_OR_RETURN(Relu2Ffn ffn,
                       Relu2Ffn::Load(weights, prefix, hidden, config.ffn_sizes[index]));
      return Block(std::move(ffn));
    }
    case NemotronBlock::kMamba:
      break;
  }
  Mamba2Layer::Options options{.config = config.mixer,
                               .gate = GateOrder::kGateThenNorm,
                               .norm_eps = config.decoder.norm_eps};
  options.conv_offset = layout().state_offset(next_part++);
  options.ssm_offset = layout().state_offset(next_part++);
  ASSIGN_OR_RETURN(Mamba2Layer mamba, Mamba2Layer::Load(weights, prefix, hidden, options));
  return Block(std::move(mamba));
}

std::vector<StateTensor> NemotronHModel::ExportState(const std::byte* state,
                                                     std::span<std::byte* const> blocks,
                                                     int64_t position) const {
  std::vector<StateTensor> out;
  for (size_t i = 0; i < layers_.size(); ++i) {
    std::vector<StateTensor> tensors;
    if (const auto* attention = std::get_if<AttentionLayer>(&layers_[i].block)) {
      tensors = ExportKv(static_cast<int>(i), attention_shape(), kPairs,
                         attention->options().kv_offset, blocks, position);
    } else if (const auto* mamba = std::get_if<Mamba2Layer>(&layers_[i].block)) {
      tensors = ExportMamba2(static_cast<int>(i), mamba->options(), state);
    }
    std::move(tensors.begin(), tensors.end(), std::back_inserter(out));
  }
  return out;
}

bool IsPredictionTensor(const ModelFile& file, std::string_view name) {
  const auto config = ReadNemotronHConfig(file);
  return config.ok() && LiesBehindLayers(name, config->decoder.layer_count);
}

constexpr Architecture Named(std::string_view name) {
  return {
      .name = name,
      .plan = [](const ModelFile& file, KvType kv_type) -> Result<ModelPlan> {
        ASSIGN_OR_RETURN(const NemotronHConfig config, ReadNemotronHConfig(file));
        return Plan(config, kv_type);
      },
      .load = NemotronHModel::Load,
      .load_reference = reference::LoadNemotronHReference,
      .ignores = IsPredictionTensor,
  };
}

}  // namespace

const Architecture kNemotronHArchitecture = Named("nemotron_h");
const Architecture kNemotronHMoeArchitecture = Named("nemotron_h_moe");

}  // namespace cairn
