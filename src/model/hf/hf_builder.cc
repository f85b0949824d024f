#include "model/hf/hf_builder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "kernels/quant.h"
#include "model/hf/hf_quantization.h"

namespace cairn {
namespace {

constexpr std::string_view kWeight = ".weight";

template <typename T>
std::string Encode(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

template <typename T>
std::string EncodeAll(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

Status Wrong(std::string_view key, const JsonValue* value, const std::string& wanted) {
  return DataLoss("[hf] config.json: got " + (value == nullptr ? "no value" : value->Describe()) +
                  " as " + std::string(key) + ", wanted " + wanted);
}

std::string ShapeText(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

Status Misfit(const std::string& name, const std::string& got, const std::string& wanted) {
  return DataLoss("[hf] tensor " + QuoteForMessage(name) + ": got " + got + ", wanted " + wanted);
}

}  // namespace

HfBuilder::HfBuilder(const JsonValue& config, const HfShards& shards, std::string architecture)
    : config_(config),
      text_config_(config.Find("text_config")),
      shards_(shards),
      architecture_(std::move(architecture)) {
  if (text_config_ != nullptr && !text_config_->is_object()) text_config_ = nullptr;
  // Of models that also see, hear or draft; none of it is asked for text.
  for (const char* prefix :
       {"model.visual.", "visual.", "vision_tower.", "model.vision_tower.", "vision_model.",
        "multi_modal_projector.", "model.multi_modal_projector.", "audio_tower.", "mtp."}) {
    SkipPrefix(prefix);
  }
  SkipContaining(".rotary_emb.");
  SkipContaining(".mtp.");  // behind a prefix of the text model
  AddEntry("general.architecture", GgufValueType::kString, architecture_);
}

void HfBuilder::SetDefaults(std::string_view json) {
  Result<JsonValue> parsed = ParseJson(json, "defaults");
  CHECK(parsed.ok());
  defaults_ = std::move(*parsed);
}

const JsonValue* HfBuilder::Find(std::string_view key) const {
  for (const JsonValue* config : {text_config_, &config_, &defaults_}) {
    if (config == nullptr) continue;
    const JsonValue* value = config->Find(key);
    if (value != nullptr && !value->is_null()) return value;
  }
  return nullptr;
}

Result<int64_t> HfBuilder::Integer(std::string_view key) const {
  const JsonValue* value = Find(key);
  const auto number = value == nullptr ? std::nullopt : value->AsInteger();
  if (!number) return Wrong(key, value, "an integer");
  return *number;
}

Result<int64_t> HfBuilder::IntegerOr(std::string_view key, int64_t fallback) const {
  return Find(key) == nullptr ? Result<int64_t>(fallback) : Integer(key);
}

Result<double> HfBuilder::Number(std::string_view key) const {
  const JsonValue* value = Find(key);
  const auto number = value == nullptr ? std::nullopt : value->AsNumber();
  if (!number) return Wrong(key, value, "a number");
  return *number;
}

Result<double> HfBuilder::NumberOr(std::string_view key, double fallback) const {
  return Find(key) == nullptr ? Result<double>(fallback) : Number(key);
}

Result<bool> HfBuilder::BoolOr(std::string_view key, bool fallback) const {
  const JsonValue* value = Find(key);
  if (value == nullptr) return fallback;
  if (!value->AsBool()) return Wrong(key, value, "true or false");
  return *value->AsBool();
}

Result<std::string> HfBuilder::StringOr(std::string_view key, std::string_view fallback) const {
  const JsonValue* value = Find(key);
  if (value == nullptr) return std::string(fallback);
  if (!value->is_string()) return Wrong(key, value, "a string");
  return std::string(*value->AsString());
}

Result<std::vector<std::string>> HfBuilder::Strings(std::string_view key) const {
  std::vector<std::string> out;
  const JsonValue* value = Find(key);
  if (value == nullptr) return out;
  if (!value->is_array()) return Wrong(key, value, "an array of strings");
  for (const JsonValue& element : value->elements()) {
    if (!element.is_string()) return Wrong(key, &element, "strings");
    out.emplace_back(*element.AsString());
  }
  return out;
}

Status HfBuilder::Demand(std::string_view key, const char* value) const {
  const JsonValue* got = Find(key);
  if (got == nullptr || got->AsString() == std::string_view(value)) return {};
  return Unsupported("[hf] config.json: got " + got->Describe() + " as " + std::string(key) +
                     ", wanted '" + std::string(value) + "'");
}

Status HfBuilder::Demand(std::string_view key, bool value) const {
  const JsonValue* got = Find(key);
  if (got == nullptr || got->AsBool() == value) return {};
  return Unsupported("[hf] config.json: got " + got->Describe() + " as " + std::string(key) +
                     ", wanted " + (value ? "true" : "false"));
}

void HfBuilder::AddEntry(std::string_view key, GgufValueType type, std::string bytes) {
  Entry& entry = entries_.emplace_back();
  entry.key =
      key.starts_with("general.") ? std::string(key) : architecture_ + "." + std::string(key);
  entry.type = type;
  entry.bytes = std::move(bytes);
}

void HfBuilder::Set(std::string_view key, int64_t value) {
  AddEntry(key, GgufValueType::kI64, Encode(value));
}

void HfBuilder::SetFloat(std::string_view key, double value) {
  AddEntry(key, GgufValueType::kF32, Encode(static_cast<float>(value)));
}

void HfBuilder::SetBool(std::string_view key, bool value) {
  AddEntry(key, GgufValueType::kBool, std::string(1, value ? '\1' : '\0'));
}

void HfBuilder::SetString(std::string_view key, std::string_view value) {
  AddEntry(key, GgufValueType::kString, std::string(value));
}

void HfBuilder::SetIntegers(std::string_view key, const std::vector<int64_t>& values) {
  AddEntry(key, GgufValueType::kArray, EncodeAll(values));
  entries_.back().element_type = GgufValueType::kI64;
  entries_.back().count = values.size();
}

void HfBuilder::SetFloats(std::string_view key, const std::vector<float>& values) {
  AddEntry(key, GgufValueType::kArray, EncodeAll(values));
  entries_.back().element_type = GgufValueType::kF32;
  entries_.back().count = values.size();
}

Status HfBuilder::SetRoot(std::initializer_list<std::string_view> roots, std::string_view probe) {
  std::string names;
  for (const std::string_view root : roots) {
    root_ = root;
    if (Has(probe)) return {};
    names += (names.empty() ? "" : ", ") + QuoteForMessage(root_ + std::string(probe));
  }
  return DataLoss("[hf] tensors: got none of " + names);
}

std::string HfBuilder::Absolute(std::string_view name) const {
  return name.starts_with('/') ? std::string(name.substr(1)) : root_ + std::string(name);
}

bool HfBuilder::Has(std::string_view name) const { return shards_.Find(Absolute(name)) != nullptr; }

Result<const HfSource*> HfBuilder::Source(std::string_view name) {
  const std::string absolute = Absolute(name);
  const auto found = sources_.find(absolute);
  if (found != sources_.end()) return &found->second;
  ASSIGN_OR_RETURN(HfSource source, MakeSource(absolute));
  return &sources_.emplace(absolute, std::move(source)).first->second;
}

Result<HfSource> HfBuilder::MakeSource(const std::string& name) {
  const SafetensorsTensor* tensor = shards_.Find(name);
  if (tensor == nullptr) {
    return NotFound("[hf] tensor " + QuoteForMessage(name) + ": got none, wanted it in the shards");
  }
  used_.insert(name);
  if (name.ends_with(kWeight)) {
    const std::string base = name.substr(0, name.size() - kWeight.size());
    if (shards_.Find(base + ".scales") != nullptr) return MakeAffine(base, *tensor);
  }
  HfSource source;
  source.name = name;
  const auto type = WeightTypeFromDtype(tensor->dtype);
  if (!type) {
    return Unsupported("[hf] tensor " + QuoteForMessage(name) + ": got dtype " +
                       std::string(tensor->dtype) +
                       ", wanted F32, F16 or BF16, or MLX affine integers (.scales, .biases)");
  }
  source.type = *type;
  source.shape = tensor->shape;
  source.data = tensor->bytes;
  source.k = tensor->shape.size() < 2 ? 1 : tensor->shape.back();
  if (tensor->element_count() == 0) return Misfit(name, "no elements", "some");
  source.rows = tensor->element_count() / source.k;
  return source;
}

Result<HfSource> HfBuilder::MakeAffine(const std::string& base, const SafetensorsTensor& weight) {
  const SafetensorsTensor* scales = shards_.Find(base + ".scales");
  const SafetensorsTensor* biases = shards_.Find(base + ".biases");
  ASSIGN_OR_RETURN(AffineSettings settings, ReadAffineSettings(config_, base));
  if (biases == nullptr) {
    return Unsupported("[hf] tensor " + QuoteForMessage(base + ".biases") +
                       ": got none, wanted it beside .scales (affine quantisation)");
  }
  used_.insert(base + ".scales");
  used_.insert(base + ".biases");
  const auto scale_type = WeightTypeFromDtype(scales->dtype);
  if (weight.dtype != "U32" || !scale_type || biases->dtype != scales->dtype) {
    return Misfit(weight.name,
                  std::string(weight.dtype) + " with scales " + std::string(scales->dtype) +
                      " and biases " + std::string(biases->dtype),
                  "U32 with both F16, both BF16 or both F32");
  }
  HfSource source;
  source.name = weight.name;
  source.shape = weight.shape;
  const bool fits = weight.shape.size() >= 2 && scales->shape.size() == weight.shape.size() &&
                    biases->shape == scales->shape && weight.element_count() > 0 &&
                    std::equal(weight.shape.begin(), weight.shape.end() - 1, scales->shape.begin());
  const auto holds = [&](int bits) {
    return fits && weight.shape.back() * 32 == scales->shape.back() * settings.group * bits;
  };
  // Where layers differ, one that config.json does not name may too; mlx-lm goes by its shape.
  const int other = settings.bits == 4 ? 8 : 4;
  if (!settings.sure && !holds(settings.bits) && holds(other)) settings.bits = other;
  source.type = *AffineWeightType({settings.bits, settings.group,
                                   *scale_type == WeightType::kF16    ? AffineScale::kF16
                                   : *scale_type == WeightType::kBF16 ? AffineScale::kBF16
                                                                      : AffineScale::kF32});
  if (fits) {
    source.k = scales->shape.back() * settings.group;
    source.shape.back() = source.k;
    source.rows = weight.element_count() / weight.shape.back();
  }
  if (!holds(settings.bits)) {
    return Misfit(
        weight.name,
        "shape " + ShapeText(weight.shape) + " with scales " + ShapeText(scales->shape) +
            " and biases " + ShapeText(biases->shape),
        std::to_string(settings.bits) + " bits in groups of " + std::to_string(settings.group));
  }
  source.data = weight.bytes;
  source.scales = scales->bytes;
  source.biases = biases->bytes;
  return source;
}

bool HfBuilder::IsMlxLayout(std::string_view conv_name) const {
  const SafetensorsTensor* conv = shards_.Find(Absolute(conv_name));
  return conv != nullptr && conv->shape.size() == 3 && conv->shape[1] != 1;
}

Status HfBuilder::AddRecipe(const std::string& to, HfRecipe recipe) {
  const bool is_new = recipes_.emplace(to, std::move(recipe)).second;
  CHECK(is_new);  // an adapter names each tensor once
  return {};
}

Status HfBuilder::Map(const std::string& to, std::string_view from, HfValue value) {
  ASSIGN_OR_RETURN(const HfSource* source, Source(from));
  HfRecipe recipe;
  recipe.value = value;
  recipe.type = value == HfValue::kAsIs ? source->type : WeightType::kF32;
  if (value != HfValue::kAsIs && IsQuantized(source->type)) {
    return Misfit(source->name, WeightTypeName(source->type), "F32, F16 or BF16");
  }
  recipe.shape = source->shape;
  // A convolution [C, 1, K] or [C, K, 1] is [C, K].
  if (recipe.shape.size() == 3) {
    const auto flat = std::remove(recipe.shape.begin() + 1, recipe.shape.end(), 1);
    recipe.shape.erase(flat, recipe.shape.end());
  }
  if (recipe.shape.empty()) recipe.shape = {1};
  recipe.runs = {{source, 0, source->rows}};
  return AddRecipe(to, std::move(recipe));
}

Status HfBuilder::MapLinear(const std::string& to, const std::string& from) {
  RETURN_IF_ERROR(Map(to + ".weight", from + ".weight"));
  return Has(from + ".bias") ? Map(to + ".bias", from + ".bias") : Status();
}

Status HfBuilder::MapPairs(const std::string& to, const std::string& from, int64_t heads) {
  for (const char* part : {".weight", ".bias"}) {
    if (part[1] == 'b' && !Has(from + part)) continue;
    ASSIGN_OR_RETURN(const HfSource* source, Source(from + part));
    if (heads < 1 || source->rows % (2 * heads) != 0) {
      return Misfit(source->name, std::to_string(source->rows) + " rows",
                    "an even number for each of " + std::to_string(heads) + " heads");
    }
    const int64_t d = source->rows / heads;
    std::vector<HfRun> runs;
    for (int64_t row = 0; row < source->rows; ++row) {
      const int64_t in_head = row % d;
      runs.push_back({source, row - in_head + in_head % 2 * (d / 2) + in_head / 2, 1});
    }
    RETURN_IF_ERROR(MapRuns(to + part, std::move(runs)));
  }
  return {};
}

Status HfBuilder::MapSlice(const std::string& to, const std::string& from, int64_t begin,
                           int64_t count) {
  for (const char* part : {".weight", ".bias"}) {
    if (part[1] == 'b' && !Has(from + part)) continue;
    ASSIGN_OR_RETURN(const HfSource* source, Source(from + part));
    RETURN_IF_ERROR(MapRuns(to + part, {{source, begin, count}}));
  }
  return {};
}

Status HfBuilder::MapRuns(const std::string& to, std::vector<HfRun> runs,
                          std::vector<int64_t> shape) {
  if (runs.empty()) return DataLoss("[hf] tensor " + QuoteForMessage(to) + ": got no rows");
  const HfSource& first = *runs.front().source;
  HfRecipe recipe;
  recipe.type = first.type;
  int64_t rows = 0;
  for (const HfRun& run : runs) {
    if (run.source->type != first.type || run.source->k != first.k) {
      return Misfit(run.source->name,
                    std::string(WeightTypeName(run.source->type)) + " rows of " +
                        std::to_string(run.source->k),
                    std::string(WeightTypeName(first.type)) + " rows of " +
                        std::to_string(first.k) + " like " + QuoteForMessage(first.name));
    }
    if (run.begin < 0 || run.count < 1 || run.begin > run.source->rows - run.count) {
      return Misfit(
          run.source->name, std::to_string(run.source->rows) + " rows",
          "rows " + std::to_string(run.begin) + " to " + std::to_string(run.begin + run.count));
    }
    rows += run.count;
  }
  if (shape.empty()) {
    shape = {rows};
    if (first.shape.size() >= 2) shape.push_back(first.k);
  }
  int64_t elements = 1;
  for (const int64_t dim : shape) elements *= dim;
  if (elements != rows * first.k) {
    return Misfit(first.name, std::to_string(rows) + " rows of " + std::to_string(first.k),
                  "shape " + ShapeText(shape));
  }
  recipe.shape = std::move(shape);
  recipe.runs = std::move(runs);
  return AddRecipe(to, std::move(recipe));
}

Status HfBuilder::MapHeadsTransposed(const std::string& to, std::string_view from, int64_t heads,
                                     int64_t begin, int64_t count) {
  ASSIGN_OR_RETURN(const HfSource* source, Source(from));
  if (IsQuantized(source->type))
    return Misfit(source->name, WeightTypeName(source->type), "F32, F16 or BF16");
  const int64_t d = heads < 1 ? 0 : source->rows / heads;
  if (begin < 0 || count < 1 || d < begin + count || source->rows != heads * d) {
    return Misfit(source->name, std::to_string(source->rows) + " rows",
                  "at least " + std::to_string(begin + count) + " for each of " +
                      std::to_string(heads) + " heads");
  }
  HfRecipe recipe;
  recipe.type = source->type;
  recipe.transposed = true;
  recipe.shape = {heads, source->k, count};
  for (int64_t h = 0; h < heads; ++h) recipe.runs.push_back({source, h * d + begin, count});
  return AddRecipe(to, std::move(recipe));
}

void HfBuilder::MapConstant(const std::string& to, std::vector<float> values) {
  HfRecipe recipe;
  recipe.shape = {static_cast<int64_t>(values.size())};
  recipe.constant = std::move(values);
  recipes_.emplace(to, std::move(recipe));
}

std::vector<const SafetensorsTensor*> HfBuilder::Unused() const {
  std::vector<const SafetensorsTensor*> unused;
  for (const auto& [name, tensor] : shards_.tensors()) {
    const auto skips_prefix = [&](const std::string& p) { return name.starts_with(p); };
    const auto skips_part = [&](const std::string& p) {
      return name.find(p) != std::string_view::npos;
    };
    if (used_.contains(name) || std::ranges::any_of(skipped_prefixes_, skips_prefix) ||
        std::ranges::any_of(skipped_parts_, skips_part)) {
      continue;
    }
    unused.push_back(tensor);
  }
  return unused;
}

}  // namespace cairn
