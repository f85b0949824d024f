// Gemma 3, text (GGUF architecture "gemma3"): attention over a sliding window, every n-th layer
// over everything, each with rotary positions of its own base; q/k norms; norms before and behind
// each block; GELU. The window is a state that cannot be trimmed. Everything this architecture is,
// is here.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/vector_ops.h"
#include "model/decoder_model.h"
#include "model/gemma3_config.h"
#include "model/layers/attention_layer.h"
#include "model/layers/swiglu_ffn.h"
#include "model/layers/window_kv.h"
#include "model/reference/architectures.h"
#include "model/registry.h"
#include "model/state_export.h"

namespace cairn {
namespace {

struct Gemma3Layer {
  std::vector<float> attention_norm, post_attention_norm;  // [hidden]
  AttentionLayer attention;
  std::vector<float> ffn_norm, post_ffn_norm;  // [hidden]
  SwiGluFfn ffn;
};

class Gemma3Model final : public DecoderModel {
 public:
  static Result<std::unique_ptr<Model>> Load(const ModelFile& file, Weights& weights,
                                             const LoadOptions& options);

  void Forward(const KernelContext& ctx, const ForwardBatch& batch,
               Workspace& workspace) const override {
    const Step step = Begin(ctx, batch, workspace);
    for (const Gemma3Layer& layer : layers_) {
      Norm(step, layer.attention_norm);
      layer.attention.Forward(step);
      NormBranch(step, layer.post_attention_norm);
      AddBranch(step);
      Norm(step, layer.ffn_norm);
      layer.ffn.Forward(step);
      NormBranch(step, layer.post_ffn_norm);
      AddBranch(step);
    }
    Finish(step, batch);
  }

  std::vector<StateTensor> ExportState(const std::byte* state, std::span<std::byte* const> blocks,
                                       int64_t position) const override;

 private:
  using DecoderModel::DecoderModel;
  void NormBranch(const Step& step, const std::vector<float>& weight) const {
    float* branch = step.scratch.branch;
    RmsNormRows(step.ctx, branch, weight.data(), config().norm_eps, step.rows, config().hidden_size,
                branch);
  }
  Result<Gemma3Layer> LoadLayer(Weights& weights, const Gemma3Config& config,
                                const LoadOptions& options, int index);

  std::vector<Gemma3Layer> layers_;
};

// One part a layer, in order.
Result<ModelPlan> Plan(const Gemma3Config& config, KvType kv_type) {
  return PlanLayers(config.decoder, [&](int layer, std::vector<StatePart>& parts) {
    if (config.IsGlobal(layer)) {
      parts.push_back({layer, FullKvOf(config.decoder, kv_type)});
    } else {
      parts.push_back({layer, WindowPart(config.shape(layer, kv_type))});
    }
  });
}

Result<std::unique_ptr<Model>> Gemma3Model::Load(const ModelFile& file, Weights& weights,
                                                 const LoadOptions& options) {
  ASSIGN_OR_RETURN(const Gemma3Config config, ReadGemma3Config(file));
  ASSIGN_OR_RETURN(ModelPlan plan, Plan(config, options.kv_type));
  ASSIGN_OR_RETURN(RopeTable rope,
                   LoadRopeTable(weights, config.decoder.rope, RopePairs::kHalfSplit,
                                 ContextInForce(config.decoder, options)));
  std::unique_ptr<Gemma3Model> model(
      new Gemma3Model(config.decoder, std::move(plan.layout), std::move(rope), options.kv_type));
  model->SetLocalRope(MakeRopeTable(config.local_rope, RopePairs::kHalfSplit));
  RETURN_IF_ERROR(model->LoadFrame(weights));
  for (int i = 0; i < config.decoder.layer_count; ++i) {
    ASSIGN_OR_RETURN(Gemma3Layer layer, model->LoadLayer(weights, config, options, i));
    model->layers_.push_back(std::move(layer));
  }
  model->FinishLoad(file, weights, options);
  return std::unique_ptr<Model>(std::move(model));
}

Result<Gemma3Layer> Gemma3Model::LoadLayer(Weights& weights, const Gemma3Config& config,
                                           const LoadOptions& options, int index) {
  const std::string prefix = "blk." + std::to_string(index) + ".";
  const DecoderConfig& c = config.decoder;
  const bool global = config.IsGlobal(index);
  const AttentionLayer::Options attention_options{
      .shape = config.shape(index, options.kv_type),
      .kv_offset = global ? layout().kv_offset(index) : layout().state_offset(index),
      .positions = global ? Positions::kRotary : Positions::kLocalRotary};
  ASSIGN_OR_RETURN(AttentionLayer::HeadNorms norms,
                   AttentionLayer::LoadHeadNorms(weights, prefix, c.head_dim, c.norm_eps));
  ASSIGN_OR_RETURN(auto attention_norm, weights.Vector(prefix + "attn_norm.weight", c.hidden_size));
  ASSIGN_OR_RETURN(auto post_attention_norm,
                   weights.Vector(prefix + "post_attention_norm.weight", c.hidden_size));
  ASSIGN_OR_RETURN(auto ffn_norm, weights.Vector(prefix + "ffn_norm.weight", c.hidden_size));
  ASSIGN_OR_RETURN(auto post_ffn_norm,
                   weights.Vector(prefix + "post_ffw_norm.weight", c.hidden_size));
  ASSIGN_OR_RETURN(
      AttentionLayer attention,
      AttentionLayer::Load(weights, prefix, c.hidden_size, attention_options, std::move(norms)));
  ASSIGN_OR_RETURN(SwiGluFfn ffn, SwiGluFfn::Load(weights, prefix, c.hidden_size, c.ffn_size,
                                                  /*suffix=*/"", GluActivation::kGelu));
  attention.AddNeeds(needs());
  ffn.AddNeeds(needs());
  return Gemma3Layer{std::move(attention_norm), std::move(post_attention_norm),
                     std::move(attention),      std::move(ffn_norm),
                     std::move(post_ffn_norm),  std::move(ffn)};
}

std::vector<StateTensor> Gemma3Model::ExportState(const std::byte* state,
                                                  std::span<std::byte* const> blocks,
                                                  int64_t position) const {
  std::vector<StateTensor> out;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const auto& options = layers_[i].attention.options();
    std::vector<StateTensor> tensors;
    if (options.shape.window > 0) {
      const auto ring = RingBlocks(options.shape, state + options.kv_offset, position);
      tensors = ExportKv(i, options.shape, RopePairs::kHalfSplit, 0, ring, position);
    } else {
      tensors =
          ExportKv(i, options.shape, RopePairs::kHalfSplit, options.kv_offset, blocks, position);
    }
    std::move(tensors.begin(), tensors.end(), std::back_inserter(out));
  }
  return out;
}

}  // namespace

const Architecture kGemma3Architecture = {
    .name = "gemma3",
    .plan = [](const ModelFile& file, KvType kv_type) -> Result<ModelPlan> {
      ASSIGN_OR_RETURN(const Gemma3Config config, ReadGemma3Config(file));
      return Plan(config, kv_type);
    },
    .load = Gemma3Model::Load,
    .load_reference = reference::LoadGemma3Reference,
    .ignores = [](const ModelFile&, std::string_view) { return false; },
};

}  // namespace cairn
