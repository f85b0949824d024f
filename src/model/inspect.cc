#include "model/inspect.h"

#include <algorithm>

#include "model/registry.h"

namespace cairn {
namespace {

void CountTensors(const ModelFile& file, ModelFacts& facts) {
  std::map<std::string, int64_t> matrix_elements;
  for (const TensorInfo& tensor : file.ListTensors()) {
    const std::string& name = tensor.type_name;
    ++facts.tensor_count_by_type[name];
    facts.parameter_count += tensor.element_count();
    facts.weight_bytes += tensor.bytes;
    if (tensor.shape.size() >= 2) matrix_elements[name] += tensor.element_count();
  }
  const auto most =
      std::max_element(matrix_elements.begin(), matrix_elements.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  if (most != matrix_elements.end()) facts.quantization = most->first;
}

}  // namespace

Result<ModelFacts> InspectModel(const ModelFile& file, KvType kv_type) {
  ASSIGN_OR_RETURN(const Architecture* architecture, ArchitectureOf(file));
  ASSIGN_OR_RETURN(const ModelPlan plan, architecture->plan(file, kv_type));
  const DecoderConfig& c = plan.decoder;
  ModelFacts facts;
  facts.name = c.name;
  facts.architecture = c.architecture;
  facts.layer_count = c.layer_count;
  facts.attention_layers = plan.attention_layers;
  facts.recurrent_layers = plan.recurrent_layers;
  facts.hidden_size = c.hidden_size;
  facts.ffn_size = c.ffn_size;
  facts.vocab_size = c.vocab_size;
  facts.heads = c.heads;
  facts.kv_heads = c.kv_heads;
  facts.head_dim = c.head_dim;
  facts.tied_embedding = c.tied;
  facts.trained_context_length = c.trained_context_length;
  facts.file_bytes = file.size_bytes();
  facts.state_bytes = plan.layout.state_bytes();
  facts.checkpoint_bytes = plan.layout.buffer_bytes();
  facts.kv_bytes_per_token = plan.layout.kv_bytes_per_token();
  facts.trimmable = plan.layout.trimmable();
  facts.layout = plan.layout;
  CountTensors(file, facts);
  return facts;
}

}  // namespace cairn
