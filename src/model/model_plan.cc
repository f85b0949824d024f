#include "model/model_plan.h"

#include <charconv>
#include <utility>

namespace cairn {

Result<ModelPlan> PlanLayers(const DecoderConfig& decoder, const AddLayerParts& add_parts) {
  ModelPlan plan;
  plan.decoder = decoder;
  std::vector<StatePart> parts;
  for (int i = 0; i < decoder.layer_count; ++i) {
    size_t part = parts.size();
    add_parts(i, parts);
    bool attention = false, recurrent = false;
    for (; part < parts.size(); ++part) {
      (std::holds_alternative<FullKv>(parts[part].kind) ? attention : recurrent) = true;
    }
    plan.attention_layers += attention;
    plan.recurrent_layers += recurrent;
  }
  ASSIGN_OR_RETURN(plan.layout,
                   StateLayout::Create(std::move(parts), decoder.hidden_size * sizeof(float)));
  return plan;
}

FullKv FullKvOf(const DecoderConfig& decoder, KvType kv_type) {
  return {decoder.attention_shape(kv_type).layer_bytes() / kBlockPositions};
}

bool LiesBehindLayers(std::string_view tensor_name, int layer_count) {
  constexpr std::string_view kPrefix = "blk.";
  if (!tensor_name.starts_with(kPrefix)) return false;
  const char* digits = tensor_name.data() + kPrefix.size();
  int layer = 0;
  const auto [end, error] = std::from_chars(digits, tensor_name.data() + tensor_name.size(), layer);
  return error == std::errc() && end != digits && layer >= layer_count;
}

}  // namespace cairn
