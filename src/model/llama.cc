// Llama (GGUF architecture "llama"): full attention and SwiGLU; Llama 3.x, SmolLM2 and their like.
// All of its state is KV. Everything this architecture is, is here.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/decoder_model.h"
#include "model/layers/attention_layer.h"
#include "model/layers/swiglu_ffn.h"
#include "model/reference/architectures.h"
#include "model/registry.h"
#include "model/state_export.h"

namespace cairn {
namespace {

// The converter permutes the rows of q and k so that a pair of the rotation lies side by side.
constexpr RopePairs kPairs = RopePairs::kInterleaved;

struct LlamaLayer {
  std::vector<float> attention_norm;  // [hidden]
  AttentionLayer attention;
  std::vector<float> ffn_norm;  // [hidden]
  SwiGluFfn ffn;
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
      layer.ffn.Forward(step);
      AddBranch(step);
    }
    Finish(step, batch);
  }

  std::vector<StateTensor> ExportState(const std::byte*, std::span<std::byte* const> blocks,
                                       int64_t position) const override {
    std::vector<StateTensor> out;
    for (size_t i = 0; i < layers_.size(); ++i) {
      auto tensors = ExportKv(i, attention_shape(), kPairs,
                              layers_[i].attention.options().kv_offset, blocks, position);
      std::move(tensors.begin(), tensors.end(), std::back_inserter(out));
    }
    return out;
  }

 private:
  using DecoderModel::DecoderModel;
  Result<LlamaLayer> LoadLayer(Weights& weights, int index);

  std::vector<LlamaLayer> layers_;
};

Result<ModelPlan> Plan(const ModelFile& file, KvType kv_type) {
  ModelPlan plan;
  ASSIGN_OR_RETURN(plan.decoder, ReadDecoderConfig(file, "llama"));
  plan.attention_layers = plan.decoder.layer_count;
  const size_t kv_bytes = plan.decoder.attention_shape(kv_type).layer_bytes() / kBlockPositions;
  std::vector<StatePart> parts;
  for (int i = 0; i < plan.decoder.layer_count; ++i) parts.push_back({i, FullKv{kv_bytes}});
  ASSIGN_OR_RETURN(plan.layout,
                   StateLayout::Create(std::move(parts), plan.decoder.hidden_size * sizeof(float)));
  return plan;
}

// Llama 3.1 stretches its low frequencies: the file holds a divisor for each.
Result<RopeTable> LoadRope(Weights& weights, const DecoderConfig& config) {
  RopeTable rope = MakeRopeTable(config, kPairs);
  ASSIGN_OR_RETURN(const auto divisors, weights.OptionalVector("rope_freqs.weight", rope.half()));
  if (!divisors.has_value()) return rope;
  for (int i = 0; i < rope.half(); ++i) {
    if (!((*divisors)[i] > 0)) return DataLoss("[model] rope_freqs.weight is not positive");
    rope.inv_freq[i] /= (*divisors)[i];
  }
  return rope;
}

Result<std::unique_ptr<Model>> LlamaModel::Load(const ModelFile& file, Weights& weights,
                                                const LoadOptions& options) {
  ASSIGN_OR_RETURN(ModelPlan plan, Plan(file, options.kv_type));
  ASSIGN_OR_RETURN(RopeTable rope, LoadRope(weights, plan.decoder));
  std::unique_ptr<LlamaModel> model(
      new LlamaModel(plan.decoder, std::move(plan.layout), std::move(rope), options.kv_type));
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
  const AttentionLayer::Options options{.shape = attention_shape(),
                                        .gate = OutputGate::kNone,
                                        .kv_offset = layout().kv_offset(index)};
  ASSIGN_OR_RETURN(auto attention_norm, weights.Vector(prefix + "attn_norm.weight", c.hidden_size));
  ASSIGN_OR_RETURN(AttentionLayer attention,
                   AttentionLayer::Load(weights, prefix, c.hidden_size, options, {}));
  ASSIGN_OR_RETURN(auto ffn_norm, weights.Vector(prefix + "ffn_norm.weight", c.hidden_size));
  ASSIGN_OR_RETURN(SwiGluFfn ffn, SwiGluFfn::Load(weights, prefix, c.hidden_size, c.ffn_size));
  attention.AddNeeds(needs());
  ffn.AddNeeds(needs());
  return LlamaLayer{std::move(attention_norm), std::move(attention), std::move(ffn_norm),
                    std::move(ffn)};
}

}  // namespace

const Architecture kLlamaArchitecture = {
    .name = "llama",
    .plan = Plan,
    .load = LlamaModel::Load,
    .load_reference = reference::LoadLlamaReference,
    .ignores = [](const ModelFile&, std::string_view) { return false; },
};

}  // namespace cairn
