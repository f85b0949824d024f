// Llama and its family (llama_family.h): full attention and SwiGLU or a mixture of experts, with
// biases, q/k norms or position-free layers where the family has them. All of its state is KV.
// Everything these architectures are, is here.
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "model/decoder_model.h"
#include "model/layers/attention_layer.h"
#include "model/layers/ffn.h"
#include "model/llama_family.h"
#include "model/reference/architectures.h"
#include "model/registry.h"
#include "model/state_export.h"

namespace cairn {
namespace {

struct LlamaLayer {
  std::vector<float> attention_norm;  // [hidden]
  AttentionLayer attention;
  std::vector<float> ffn_norm;  // [hidden]
  Ffn ffn;
};

class LlamaModel final : public DecoderModel {
 public:
  static Result<std::unique_ptr<Model>> Load(const ModelFile& file, Weights& weights,
                                             const LoadOptions& options);

  void Forward(const KernelContext& ctx, const ForwardBatch& batch,
               Workspace& workspace) const override {
    const Step step = Begin(ctx, batch, workspace);
    for (const LlamaLayer& layer : layers_) {
      Norm(step, layer.attention_norm);
      layer.attention.Forward(step);
      AddBranch(step);
      Norm(step, layer.ffn_norm);
      std::visit([&](const auto& ffn) { ffn.Forward(step); }, layer.ffn);
      AddBranch(step);
    }
    Finish(step, batch);
  }

  std::vector<StateTensor> ExportState(const std::byte*, std::span<std::byte* const> blocks,
                                       int64_t position) const override {
    std::vector<StateTensor> out;
    for (size_t i = 0; i < layers_.size(); ++i) {
      auto tensors = ExportKv(i, attention_shape(), config_.family.pairs,
                              layers_[i].attention.options().kv_offset, blocks, position);
      std::move(tensors.begin(), tensors.end(), std::back_inserter(out));
    }
    return out;
  }

 private:
  LlamaModel(LlamaConfig config, StateLayout layout, RopeTable rope, KvType kv_type)
      : DecoderModel(config.decoder, std::move(layout), std::move(rope), kv_type),
        config_(std::move(config)) {}
  Result<LlamaLayer> LoadLayer(Weights& weights, int index);

  const LlamaConfig config_;
  std::vector<LlamaLayer> layers_;
};

Result<ModelPlan> Plan(const LlamaConfig& config, KvType kv_type) {
  return PlanLayers(config.decoder, [&](int layer, std::vector<StatePart>& parts) {
    parts.push_back({layer, FullKvOf(config.decoder, kv_type)});
  });
}

// A context no longer than the window sees all of it.
Status CheckWindow(const LlamaConfig& config, const LoadOptions& options) {
  if (config.window == 0 || ContextInForce(config.decoder, options) <= config.window) return {};
  const std::string window = std::to_string(config.window);
  return Unsupported("[model] a context beyond the sliding window of " + window +
                     " positions is not in this version; wanted --context-length " + window +
                     " or less");
}

Result<std::unique_ptr<Model>> LlamaModel::Load(const ModelFile& file, Weights& weights,
                                                const LoadOptions& options) {
  ASSIGN_OR_RETURN(LlamaConfig config, ReadLlamaConfig(file));
  RETURN_IF_ERROR(CheckWindow(config, options));
  ASSIGN_OR_RETURN(ModelPlan plan, Plan(config, options.kv_type));
  ASSIGN_OR_RETURN(RopeTable rope, LoadRopeTable(weights, config.decoder.rope, config.family.pairs,
                                                 ContextInForce(config.decoder, options)));
  std::unique_ptr<LlamaModel> model(
      new LlamaModel(std::move(config), std::move(plan.layout), std::move(rope), options.kv_type));
  RETURN_IF_ERROR(model->LoadFrame(weights));
  for (int i = 0; i < plan.decoder.layer_count; ++i) {
    ASSIGN_OR_RETURN(LlamaLayer layer, model->LoadLayer(weights, i));
    model->layers_.push_back(std::move(layer));
  }
  model->FinishLoad(file, weights, options);
  return std::unique_ptr<Model>(std::move(model));
}

Result<LlamaLayer> LlamaModel::LoadLayer(Weights& weights, int index) {
  const std::string prefix = "blk." + std::to_string(index) + ".";
  const DecoderConfig& c = config();
  const AttentionLayer::Options options{
      .shape = attention_shape(),
      .kv_offset = layout().kv_offset(index),
      .positions = config_.HasPositions(index) ? Positions::kRotary : Positions::kNone,
      .growth = config_.growth};
  AttentionLayer::HeadNorms norms;
  if (config_.family.head_norms) {
    ASSIGN_OR_RETURN(norms, AttentionLayer::LoadHeadNorms(weights, prefix, c.head_dim, c.norm_eps));
  }
  ASSIGN_OR_RETURN(auto attention_norm, weights.Vector(prefix + "attn_norm.weight", c.hidden_size));
  ASSIGN_OR_RETURN(AttentionLayer attention,
                   AttentionLayer::Load(weights, prefix, c.hidden_size, options, std::move(norms)));
  ASSIGN_OR_RETURN(auto ffn_norm, weights.Vector(prefix + "ffn_norm.weight", c.hidden_size));
  ASSIGN_OR_RETURN(Ffn ffn, LoadFfn(weights, prefix, c.hidden_size, c.ffn_size, config_.moe));
  attention.AddNeeds(needs());
  std::visit([&](const auto& block) { block.AddNeeds(needs()); }, ffn);
  return LlamaLayer{std::move(attention_norm), std::move(attention), std::move(ffn_norm),
                    std::move(ffn)};
}

constexpr Architecture Named(std::string_view name) {
  return {
      .name = name,
      .plan = [](const ModelFile& file, KvType kv_type) -> Result<ModelPlan> {
        ASSIGN_OR_RETURN(const LlamaConfig config, ReadLlamaConfig(file));
        return Plan(config, kv_type);
      },
      .load = LlamaModel::Load,
      .load_reference = reference::LoadLlamaReference,
      .ignores = [](const ModelFile&, std::string_view) { return false; },
  };
}

}  // namespace

const Architecture kLlamaArchitecture = Named("llama");
const Architecture kMistral3Architecture = Named("mistral3");
const Architecture kSmolLm3Architecture = Named("smollm3");
const Architecture kQwen2Architecture = Named("qwen2");
const Architecture kQwen2MoeArchitecture = Named("qwen2moe");
const Architecture kQwen3Architecture = Named("qwen3");
const Architecture kQwen3MoeArchitecture = Named("qwen3moe");

}  // namespace cairn
