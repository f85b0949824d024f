// What a Hugging Face directory says of text: tokenizer, template, end tokens, sampling defaults.
#include <algorithm>
#include <filesystem>
#include <optional>

#include "base/bytes.h"
#include "model/hf/hf_files.h"

namespace cairn {
namespace {

constexpr uint64_t kTokenizerBytesMax = 256ull << 20;
constexpr uint64_t kConfigBytesMax = 64ull << 20;  // some list every added token
constexpr uint64_t kTemplateBytesMax = 1 << 20;
constexpr size_t kEndTokensMax = 256;

// The text of a file that may be absent.
Result<std::string> ReadOptional(const std::string& path, uint64_t bytes_max) {
  std::error_code ec;
  if (!std::filesystem::exists(path, ec)) return std::string();
  return ReadTextFile(path, bytes_max);
}

// A template's text: a string, or a list of {name, template} with one named "default".
Result<std::string> TemplateOf(const JsonValue& value, const std::string& where) {
  if (value.is_null()) return std::string();
  if (const auto text = value.AsString()) return std::string(*text);
  std::optional<std::string> first;
  for (const JsonValue& named : value.elements()) {
    const JsonValue* name = named.Find("name");
    const JsonValue* source = named.Find("template");
    if (name == nullptr || source == nullptr || !source->is_string()) continue;
    if (name->AsString() == "default") return std::string(*source->AsString());
    if (!first) first = *source->AsString();
  }
  if (first) return *first;
  return DataLoss("[hf] " + where + ": got " + value.Describe() +
                  " as chat_template, wanted a string or a list of {name, template}");
}

Result<std::string> ReadTemplate(const std::string& directory, const std::string& config_json) {
  ASSIGN_OR_RETURN(std::string own,
                   ReadOptional(directory + "/chat_template.jinja", kTemplateBytesMax));
  if (!own.empty()) return own;
  ASSIGN_OR_RETURN(const std::string json,
                   ReadOptional(directory + "/chat_template.json", kTemplateBytesMax));
  for (const auto& [text, where] :
       {std::pair(json, "chat_template.json"), std::pair(config_json, "tokenizer_config.json")}) {
    if (text.empty()) continue;
    ASSIGN_OR_RETURN(const JsonValue value, ParseJson(text, where));
    const JsonValue* source = value.Find("chat_template");
    if (source != nullptr) return TemplateOf(*source, where);
  }
  return std::string();
}

// One id, or a list of them.
Status AddEndTokens(const JsonValue* value, const char* where, std::vector<int64_t>* out) {
  if (value == nullptr || value->is_null()) return {};
  const auto add = [&](const JsonValue& id) -> Status {
    const auto number = id.AsInteger();
    if (!number || *number < 0 || out->size() >= kEndTokensMax) {
      return DataLoss("[hf] " + std::string(where) + ": got " + id.Describe() +
                      " as eos_token_id, wanted token ids, at most 256");
    }
    if (std::find(out->begin(), out->end(), *number) == out->end()) out->push_back(*number);
    return {};
  };
  if (!value->is_array()) return add(*value);
  for (const JsonValue& id : value->elements()) RETURN_IF_ERROR(add(id));
  return {};
}

Result<std::optional<double>> ReadDefault(const JsonValue& generation, const char* key) {
  const JsonValue* value = generation.Find(key);
  if (value == nullptr || value->is_null()) return std::optional<double>();
  const auto number = value->AsNumber();
  if (!number || !(*number >= 0) || *number > 1e9) {
    return DataLoss("[hf] generation_config.json: got " + value->Describe() + " as " + key +
                    ", wanted a number >= 0");
  }
  return number;
}

Status ReadGeneration(const JsonValue& generation, HuggingFaceText* out) {
  RETURN_IF_ERROR(
      AddEndTokens(generation.Find("eos_token_id"), "generation_config.json", &out->end_tokens));
  const JsonValue* do_sample = generation.Find("do_sample");
  if (do_sample != nullptr && do_sample->AsBool() == false) return {};  // greedy
  ASSIGN_OR_RETURN(out->temperature, ReadDefault(generation, "temperature"));
  ASSIGN_OR_RETURN(out->top_p, ReadDefault(generation, "top_p"));
  ASSIGN_OR_RETURN(out->top_k, ReadDefault(generation, "top_k"));
  ASSIGN_OR_RETURN(out->min_p, ReadDefault(generation, "min_p"));
  return {};
}

}  // namespace

Result<HuggingFaceText> ReadHfText(const std::string& directory, const JsonValue& config) {
  HuggingFaceText text;
  ASSIGN_OR_RETURN(text.tokenizer_json,
                   ReadOptional(directory + "/tokenizer.json", kTokenizerBytesMax));
  if (text.tokenizer_json.empty()) {
    ASSIGN_OR_RETURN(text.tiktoken_model,
                     ReadOptional(directory + "/tiktoken.model", kTokenizerBytesMax));
  }
  if (text.tokenizer_json.empty() && text.tiktoken_model.empty()) {
    std::error_code ec;
    const bool model = std::filesystem::exists(directory + "/tokenizer.model", ec);
    return NotFound("[hf] directory '" + directory + "': tokenizer.json is missing" +
                    (model ? " (tokenizer.model alone is not enough)" : ""));
  }
  ASSIGN_OR_RETURN(text.tokenizer_config_json,
                   ReadOptional(directory + "/tokenizer_config.json", kConfigBytesMax));
  ASSIGN_OR_RETURN(text.chat_template, ReadTemplate(directory, text.tokenizer_config_json));
  ASSIGN_OR_RETURN(const std::string generation,
                   ReadOptional(directory + "/generation_config.json", kConfigBytesMax));
  if (!generation.empty()) {
    ASSIGN_OR_RETURN(const JsonValue value, ParseJson(generation, "generation_config.json"));
    RETURN_IF_ERROR(ReadGeneration(value, &text));
  }
  RETURN_IF_ERROR(AddEndTokens(config.Find("eos_token_id"), "config.json", &text.end_tokens));
  if (const JsonValue* inner = config.Find("text_config"); inner != nullptr) {
    RETURN_IF_ERROR(AddEndTokens(inner->Find("eos_token_id"), "config.json", &text.end_tokens));
  }
  return text;
}

}  // namespace cairn
