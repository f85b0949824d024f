#include "model/hf/hf_quantization.h"

#include <algorithm>
#include <string>

#include "base/bytes.h"

namespace cairn {
namespace {

constexpr char kSupported[] =
    "; this version knows F32, F16 and BF16 weights, and MLX affine quantisation of 4 and 8 bits "
    "in groups of 32, 64 and 128";

const JsonValue* FindSettings(const JsonValue& config) {
  for (const char* key : {"quantization", "quantization_config"}) {
    const JsonValue* value = config.Find(key);
    if (value != nullptr && value->is_object()) return value;
  }
  return nullptr;
}

}  // namespace

Status CheckQuantization(const JsonValue& config) {
  for (const char* key : {"quantization_config", "quantization", "compression_config"}) {
    const JsonValue* value = config.Find(key);
    if (value == nullptr || value->is_null()) continue;
    for (const char* name : {"quant_method", "quant_algo", "mode"}) {
      const JsonValue* method = value->Find(name);
      if (method == nullptr || method->is_null()) continue;
      if (std::string_view(name) == "mode" && method->AsString() == "affine") continue;
      return Unsupported("[hf] quantisation " + method->Describe() + " is not in this version" +
                         kSupported);
    }
    if (value->Find("bits") == nullptr) {
      return Unsupported("[hf] config.json: got " + std::string(key) + " without bits" +
                         kSupported);
    }
  }
  return {};
}

Result<AffineSettings> ReadAffineSettings(const JsonValue& config, std::string_view name) {
  const JsonValue* common = FindSettings(config);
  if (common == nullptr) {
    return DataLoss("[hf] tensor " + QuoteForMessage(name) +
                    ": got .scales, but config.json has no quantization");
  }
  const JsonValue* own = common->Find(name);
  const auto read = [&](const char* key) -> int64_t {
    for (const JsonValue* settings : {own, common}) {
      const JsonValue* value = settings == nullptr ? nullptr : settings->Find(key);
      if (value != nullptr) return value->AsInteger().value_or(-1);
    }
    return std::string_view(key) == "bits" ? 4 : 64;  // MLX's own defaults
  };
  const int64_t bits = read("bits");
  const int64_t group = read("group_size");
  const JsonValue* mode = own == nullptr ? nullptr : own->Find("mode");
  if (mode != nullptr && mode->AsString() != "affine") {
    return Unsupported("[hf] layer " + QuoteForMessage(name) + ": quantisation " +
                       mode->Describe() + " is not in this version" + kSupported);
  }
  if ((bits != 4 && bits != 8) || (group != 32 && group != 64 && group != 128)) {
    return Unsupported("[hf] layer " + QuoteForMessage(name) + ": affine quantisation of " +
                       std::to_string(bits) + " bits in groups of " + std::to_string(group) +
                       " is not in this version" + kSupported);
  }
  const bool mixed = std::ranges::any_of(
      common->members(), [](const JsonValue::Member& member) { return member.second.is_object(); });
  return AffineSettings{static_cast<int>(bits), static_cast<int>(group), own != nullptr || !mixed};
}

}  // namespace cairn
