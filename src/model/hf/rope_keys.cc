// Rotary positions of config.json in the terms of GGUF: keys, and tensors of divisors.
#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/rope.h"
#include "model/hf/adapters.h"

namespace cairn {
namespace {

constexpr double kTwoPi = 6.283185307179586;

// rope_parameters (new) or rope_scaling (old), whichever is there.
const JsonValue* ScalingOf(const HfBuilder& b) {
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const JsonValue* value = b.Find(key);
    if (value == nullptr || !value->is_object()) continue;
    // By kind of layer (Gemma-3): the others' are the adapter's affair.
    const JsonValue* full = value->Find("full_attention");
    return full != nullptr && full->is_object() ? full : value;
  }
  return nullptr;
}

struct Scaling {
  const JsonValue* object;  // may be null
  const JsonValue* Find(std::string_view key) const {
    const JsonValue* value = object == nullptr ? nullptr : object->Find(key);
    return value != nullptr && value->is_null() ? nullptr : value;
  }
  Result<double> NumberOr(std::string_view key, double fallback) const {
    const JsonValue* value = Find(key);
    if (value == nullptr) return fallback;
    const auto number = value->AsNumber();
    if (!number || !std::isfinite(*number)) {
      return DataLoss("[hf] config.json: got " + value->Describe() + " as " + std::string(key) +
                      " of the rope, wanted a number");
    }
    return *number;
  }
  std::string Type() const {
    for (const char* key : {"rope_type", "type"}) {
      const JsonValue* value = Find(key);
      if (value != nullptr && value->is_string()) return std::string(*value->AsString());
    }
    return "default";
  }
};

// Llama 3.1: low frequencies are divided by the factor, high ones stay, a ramp lies between.
Status MapLlama3(HfBuilder& b, const Scaling& s, double base, int64_t dims, double context) {
  ASSIGN_OR_RETURN(const double factor, s.NumberOr("factor", 8));
  ASSIGN_OR_RETURN(const double low, s.NumberOr("low_freq_factor", 1));
  ASSIGN_OR_RETURN(const double high, s.NumberOr("high_freq_factor", 4));
  ASSIGN_OR_RETURN(const double original, s.NumberOr("original_max_position_embeddings", context));
  if (!(factor > 0 && low > 0 && high > low && original > 0))
    return DataLoss("[hf] config.json: llama3 rope factors make no sense");
  std::vector<float> divisors;
  for (const double frequency : RopeInverseFrequencies(base, static_cast<int>(dims))) {
    const double turns = original * frequency / kTwoPi;  // over the original context
    const double smooth = std::clamp((turns - low) / (high - low), 0.0, 1.0);
    divisors.push_back(static_cast<float>(1 / (smooth + (1 - smooth) / factor)));
  }
  b.MapConstant("rope_freqs.weight", std::move(divisors));
  return {};
}

Status MapLongRope(HfBuilder& b, const Scaling& s, int64_t dims, double context) {
  for (const char* which : {"long_factor", "short_factor"}) {
    const JsonValue* list = s.Find(which);
    std::vector<float> divisors;
    for (const JsonValue& value : list == nullptr ? std::vector<JsonValue>() : list->elements())
      divisors.push_back(static_cast<float>(value.AsNumber().value_or(0)));
    if (static_cast<int64_t>(divisors.size()) != dims / 2) {
      return DataLoss("[hf] config.json: got " + std::to_string(divisors.size()) + " of " + which +
                      ", wanted " + std::to_string(dims / 2));
    }
    b.MapConstant(which[0] == 'l' ? "rope_factors_long.weight" : "rope_factors_short.weight",
                  std::move(divisors));
  }
  // Beside the rope it counts more than in it, as in Transformers.
  ASSIGN_OR_RETURN(const double inner, s.NumberOr("original_max_position_embeddings", context));
  ASSIGN_OR_RETURN(const double original, b.NumberOr("original_max_position_embeddings", inner));
  const double stretch = context / original;
  const double own = stretch > 1 ? std::sqrt(1 + LogDouble(stretch) / LogDouble(original)) : 1.0;
  ASSIGN_OR_RETURN(const double attention, s.NumberOr("attention_factor", own));
  b.SetString("rope.scaling.type", "longrope");
  b.Set("rope.scaling.original_context_length", static_cast<int64_t>(original));
  b.SetFloat("rope.scaling.attn_factor", attention);
  return {};
}

double YarnMagnitude(double factor, double scale) {
  return factor > 1 ? 1 + 0.1 * scale * LogDouble(factor) : 1;
}

Status SetYarn(HfBuilder& b, const Scaling& s, double context) {
  if (const JsonValue* value = s.Find("truncate"); value != nullptr && value->AsBool() != true)
    return Unsupported("[hf] config.json: truncate of yarn is not in this version");
  ASSIGN_OR_RETURN(const double original, s.NumberOr("original_max_position_embeddings", context));
  ASSIGN_OR_RETURN(const double factor, s.NumberOr("factor", context / original));
  ASSIGN_OR_RETURN(const double scale, s.NumberOr("mscale", 0));
  ASSIGN_OR_RETURN(const double scale_all, s.NumberOr("mscale_all_dim", 0));
  ASSIGN_OR_RETURN(const double fast, s.NumberOr("beta_fast", 32));
  ASSIGN_OR_RETURN(const double slow, s.NumberOr("beta_slow", 1));
  const double own = YarnMagnitude(factor, 1);  // multiplied in at load
  const bool both = scale != 0 && scale_all != 0;
  const double magnitude =
      both ? YarnMagnitude(factor, scale) / YarnMagnitude(factor, scale_all) : own;
  ASSIGN_OR_RETURN(const double attention, s.NumberOr("attention_factor", magnitude));
  b.SetString("rope.scaling.type", "yarn");
  b.SetFloat("rope.scaling.factor", factor);
  b.Set("rope.scaling.original_context_length", static_cast<int64_t>(original));
  b.SetFloat("rope.scaling.yarn_beta_fast", fast);
  b.SetFloat("rope.scaling.yarn_beta_slow", slow);
  b.SetFloat("rope.scaling.attn_factor", attention / own);
  return {};
}

}  // namespace

Status SetRopeKeys(HfBuilder& b, int64_t head_dim) {
  const Scaling scaling{ScalingOf(b)};
  ASSIGN_OR_RETURN(const double outer_base, b.NumberOr("rope_theta", 10000));
  ASSIGN_OR_RETURN(const double base, scaling.NumberOr("rope_theta", outer_base));
  ASSIGN_OR_RETURN(const double outer_part, b.NumberOr("partial_rotary_factor", 1));
  ASSIGN_OR_RETURN(const double part, scaling.NumberOr("partial_rotary_factor", outer_part));
  ASSIGN_OR_RETURN(const double context, b.NumberOr("max_position_embeddings", 1 << 20));
  const auto dims = static_cast<int64_t>(static_cast<double>(head_dim) * part);
  if (!(base > 1) || dims < 2 || dims > head_dim || dims % 2 != 0)
    return DataLoss("[hf] config.json: got " + std::to_string(dims) + " rotary dimensions of " +
                    std::to_string(head_dim) + ", base " + std::to_string(base));
  b.SetFloat("rope.freq_base", base);
  b.Set("rope.dimension_count", dims);
  const std::string type = scaling.Type();
  if (type == "default" || type == "mrope") return {};
  if (type == "linear") {
    ASSIGN_OR_RETURN(const double factor, scaling.NumberOr("factor", 1));
    b.SetString("rope.scaling.type", "linear");
    b.SetFloat("rope.scaling.factor", factor);
    return {};
  }
  if (type == "llama3") return MapLlama3(b, scaling, static_cast<float>(base), dims, context);
  if (type == "yarn") return SetYarn(b, scaling, context);
  if (type == "longrope" || type == "su") return MapLongRope(b, scaling, dims, context);
  return Unsupported("[hf] rope type '" + type.substr(0, 32) +
                     "' is not in this version; it knows default, linear, yarn, llama3, longrope");
}

}  // namespace cairn
