// JSON bodies -> checked requests. Reads top-down: the entry points, then messages, then the single
// fields.
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "server/json_fields.h"
#include "server/openai_json.h"

namespace cairn {
namespace {

constexpr size_t kSaltBytesMax = 1024;
constexpr int64_t kPriorityMax = 1000;

// -- Messages

bool IsImagePart(const std::string& type) {
  for (const char* word : {"image", "audio", "video", "file"}) {
    if (type.find(word) != std::string::npos) return true;
  }
  return false;
}

void CheckParts(Fields& f, const std::string& where, const Json& parts) {
  for (const Json& part : parts) {
    if (!part.is_object()) return f.Wrong(where, part, "an array of parts, each an object");
    const auto type = part.find("type");
    if (type == part.end() || !type->is_string())
      return f.Fail(BadField(where, "a part without a type, wanted \"text\""));
    const auto& name = type->get_ref<const std::string&>();
    if (IsImagePart(name))
      return f.Fail(UnsupportedField(where, "part \"" + name + "\": only text is in this version"));
    if (name != "text" && name != "input_text" && name != "output_text") {
      return f.Fail(BadField(where, "part of type \"" + name + "\", wanted \"text\""));
    }
    const auto text = part.find("text");
    if (text == part.end() || !text->is_string())
      return f.Fail(BadField(where, "a text part without a text string"));
  }
}

void CheckToolCalls(Fields& f, const std::string& where, const Json& calls) {
  if (!calls.is_array()) return f.Wrong(where, calls, "an array");
  for (const Json& call : calls) {
    if (!call.is_object()) return f.Wrong(where, call, "an array of objects");
    const auto function = call.find("function");
    if (function == call.end() || !function->is_object())
      return f.Fail(BadField(where, "a call without a function object"));
    const auto name = function->find("name");
    if (name == function->end() || !name->is_string())
      return f.Fail(BadField(where, "a function without a name string"));
    const auto arguments = function->find("arguments");
    if (arguments != function->end() && !arguments->is_string() && !arguments->is_object() &&
        !arguments->is_null()) {
      return f.Wrong(where, *arguments, "function arguments as a string or an object");
    }
  }
}

// Checks one message and drops what a template would trip over: null fields (but content) and the
// second name of reasoning.
void NormaliseMessage(Fields& f, const std::string& where, Json& m) {
  if (!m.is_object()) return f.Wrong(where, m, "an object with role and content");
  const auto role = m.find("role");
  if (role == m.end() || !role->is_string())
    return f.Fail(BadField(where + ".role", "missing, wanted a string"));
  static constexpr std::array<const char*, 5> kRoles = {"system", "developer", "user", "assistant",
                                                        "tool"};
  const auto& role_name = role->get_ref<const std::string&>();
  if (std::find(kRoles.begin(), kRoles.end(), role_name) == kRoles.end()) {
    return f.Fail(
        BadField(where + ".role", "got \"" + role_name.substr(0, 40) +
                                      "\", wanted system, developer, user, assistant or tool"));
  }
  const auto content = m.find("content");
  if (content == m.end()) {
    m["content"] = nullptr;
  } else if (content->is_array()) {
    CheckParts(f, where + ".content", *content);
  } else if (!content->is_string() && !content->is_null()) {
    return f.Wrong(where + ".content", *content, "a string, an array of parts or null");
  }
  for (const char* name : {"reasoning_content", "reasoning", "name", "tool_call_id"}) {
    const auto field = m.find(name);
    if (field != m.end() && !field->is_string() && !field->is_null())
      return f.Wrong(where + "." + name, *field, "a string");
  }
  if (const auto calls = m.find("tool_calls"); calls != m.end() && !calls->is_null())
    CheckToolCalls(f, where + ".tool_calls", *calls);
  Json kept = Json::object();
  for (auto& [key, value] : m.items()) {
    if (!value.is_null() || key == "content") kept[key] = std::move(value);
  }
  if (!kept.contains("reasoning_content") && kept.contains("reasoning"))
    kept["reasoning_content"] = kept["reasoning"];
  m = std::move(kept);
}

void ReadMessages(Fields& f, Json& body, const RequestDefaults& limits, GenerationRequest& r) {
  const auto it = body.find("messages");
  if (it == body.end() || it->is_null())
    return f.Fail(BadField("messages", "missing, wanted an array of messages"));
  if (!it->is_array()) return f.Wrong("messages", *it, "an array of messages");
  if (it->empty()) return f.Fail(BadField("messages", "empty, wanted at least one message"));
  if (it->size() > static_cast<size_t>(limits.messages_max)) {
    return f.Fail(
        BadField("messages", "more than " + std::to_string(limits.messages_max) + " messages"));
  }
  for (size_t i = 0; i < it->size() && !f.error(); ++i)
    NormaliseMessage(f, "messages[" + std::to_string(i) + "]", (*it)[i]);
  if (!f.error()) r.messages_json = DumpJson(*it);
}

// Tools are rendered into the prompt; the reply is plain text in this version.
void ReadTools(Fields& f, GenerationRequest& r) {
  std::string choice = "auto";
  if (const Json* c = f.Find("tool_choice")) {
    if (!c->is_string() && !c->is_object())
      return f.Wrong("tool_choice", *c, "\"auto\" or \"none\"");
    choice = c->is_string() ? c->get<std::string>() : "object";
  }
  if (choice != "auto" && choice != "none")
    return f.Fail(
        UnsupportedField("tool_choice", "only \"auto\" and \"none\" are in this version"));
  const Json* tools = f.Find("tools");
  if (tools == nullptr) return;
  if (!tools->is_array()) return f.Wrong("tools", *tools, "an array");
  for (const Json& tool : *tools) {
    if (!tool.is_object()) return f.Wrong("tools", tool, "an array of objects");
  }
  // With "none" too: a chat that goes on without calls begins as it did with them.
  if (!tools->empty()) r.tools_json = DumpJson(*tools);
}

void ReadTemplateArguments(Fields& f, GenerationRequest& r) {
  Json kwargs = Json::object();
  for (const char* name : {"reasoning_effort", "enable_thinking"}) {
    if (const Json* v = f.Find(name)) kwargs[name] = *v;
  }
  if (const Json* effort = f.Find("reasoning_effort"); effort && *effort == "none")
    kwargs.emplace("enable_thinking", false);  // what templates without efforts know it as
  if (const Json* given = f.Find("chat_template_kwargs")) {
    if (!given->is_object()) return f.Wrong("chat_template_kwargs", *given, "an object");
    for (const auto& [key, value] : given->items()) kwargs[key] = value;
  }
  if (!kwargs.empty()) r.kwargs_json = DumpJson(kwargs);
  r.add_generation_prompt = f.Bool("add_generation_prompt", true);
  if (f.Bool("continue_final_message", false)) f.Fail(UnsupportedField("continue_final_message"));
}

// -- Prompts of completions

std::optional<std::vector<Token>> ReadTokenArray(Fields& f, const char* name, const Json& array,
                                                 int vocab_size) {
  std::vector<Token> tokens;
  tokens.reserve(array.size());
  for (const Json& v : array) {
    const auto id = Fields::ToInteger(v);
    if (!id || *id < 0 || *id >= vocab_size) {
      f.Wrong(name, v, "token ids from 0 to " + std::to_string(vocab_size - 1));
      return std::nullopt;
    }
    tokens.push_back(static_cast<Token>(*id));
  }
  return tokens;
}

void ReadPrompt(Fields& f, int vocab_size, GenerationRequest& r) {
  const Json* prompt = f.Find("prompt");
  if (prompt == nullptr)
    return f.Fail(BadField("prompt", "missing, wanted a string or an array of token ids"));
  if (prompt->is_array() && !prompt->empty() && !(*prompt)[0].is_number()) {
    if (prompt->size() > 1)
      return f.Fail(UnsupportedField("prompt", "several prompts in one request, wanted one"));
    prompt = &(*prompt)[0];
  }
  if (prompt->is_string()) {
    r.prompt_text = prompt->get<std::string>();
  } else if (prompt->is_array() && !prompt->empty()) {
    r.prompt_tokens = ReadTokenArray(f, "prompt", *prompt, vocab_size);
  } else if (prompt->is_array()) {
    f.Fail(BadField("prompt", "empty, wanted at least one token"));
  } else {
    f.Wrong("prompt", *prompt, "a string or an array of token ids");
  }
}

// -- Fields of both routes

void ReadStop(Fields& f, const RequestDefaults& limits, GenerationRequest& r) {
  const Json* stop = f.Find("stop");
  if (stop == nullptr) return;
  if (stop->is_string()) {
    r.stop.push_back(stop->get<std::string>());
  } else if (stop->is_array()) {
    for (const Json& s : *stop) {
      if (!s.is_string()) return f.Wrong("stop", s, "a string or an array of strings");
      r.stop.push_back(s.get<std::string>());
    }
  } else {
    return f.Wrong("stop", *stop, "a string or an array of strings");
  }
  if (r.stop.size() > static_cast<size_t>(limits.stop_strings_max)) {
    return f.Fail(
        BadField("stop", "more than " + std::to_string(limits.stop_strings_max) + " strings"));
  }
  size_t bytes = 0;
  for (const std::string& s : r.stop) bytes += s.size();
  if (bytes > limits.stop_bytes_max) {
    return f.Fail(
        BadField("stop", "more than " + std::to_string(limits.stop_bytes_max) + " bytes in all"));
  }
  std::erase(r.stop, "");
  r.engine.has_stop_strings = !r.stop.empty();
}

void AddLogitBias(Fields& f, std::optional<int64_t> id, const Json& value, int vocab_size,
                  Request& request) {
  if (!id || *id < 0 || *id >= vocab_size) {
    return f.Fail(BadField(
        "logit_bias", "a key that is no token id from 0 to " + std::to_string(vocab_size - 1)));
  }
  float bias = -std::numeric_limits<float>::infinity();  // llama.cpp's false: never
  if (value != Json(false)) {
    if (!value.is_number() || !(std::fabs(value.get<double>()) <= 100))
      return f.Wrong("logit_bias", value, "a number from -100 to 100, or false");
    bias = value.get<float>();
  }
  request.sampling.logit_bias.emplace_back(static_cast<Token>(*id), bias);
}

void ReadLogitBias(Fields& f, const RequestDefaults& limits, int vocab_size, Request& request) {
  const Json* bias = f.Find("logit_bias");
  if (bias == nullptr) return;
  if (!bias->is_object() && !bias->is_array())
    return f.Wrong("logit_bias", *bias, "an object of token id: bias");
  if (bias->size() > static_cast<size_t>(limits.logit_bias_max)) {
    return f.Fail(
        BadField("logit_bias", "more than " + std::to_string(limits.logit_bias_max) + " entries"));
  }
  if (bias->is_array()) {  // llama.cpp's [[id, bias], ...]
    for (const Json& pair : *bias) {
      if (!pair.is_array() || pair.size() != 2)
        return f.Wrong("logit_bias", pair, "pairs of token id and bias");
      AddLogitBias(f, Fields::ToInteger(pair[0]), pair[1], vocab_size, request);
    }
    return;
  }
  for (const auto& [key, value] : bias->items()) {
    const bool digits =
        !key.empty() && key.size() < 10 && key.find_first_not_of("0123456789") == std::string::npos;
    AddLogitBias(f, digits ? std::optional<int64_t>(std::stoll(key)) : std::nullopt, value,
                 vocab_size, request);
  }
}

void ReadSampling(Fields& f, const RequestDefaults& defaults, int vocab_size, Request& request) {
  SamplingParams& s = request.sampling;
  s = defaults.sampling;
  auto number = [&](const char* name, double min, double max, float& out) {
    if (const auto v = f.Number(name, min, max)) out = static_cast<float>(*v);
  };
  number("temperature", 0, 100, s.temperature);
  number("top_p", 0, 1, s.top_p);
  number("min_p", 0, 1, s.min_p);
  number("xtc_probability", 0, 1, s.xtc_probability);
  number("xtc_threshold", 0, 1, s.xtc_threshold);
  number("repeat_penalty", 1e-6, 100, s.repetition_penalty);  // llama.cpp's name
  if (const Json* p = f.Find("repetition_penalty"); p && *p == 0)
    s.repetition_penalty = 1;  // mlx-lm's default, which means none
  else
    number("repetition_penalty", 1e-6, 100, s.repetition_penalty);
  number("presence_penalty", -100, 100, s.presence_penalty);
  number("frequency_penalty", -100, 100, s.frequency_penalty);
  if (const auto k = f.Integer("top_k", -1, INT32_MAX))
    s.top_k = static_cast<int>(std::max<int64_t>(0, *k));
  for (const char* name : {"repeat_last_n", "repetition_context_size"}) {
    if (const auto n = f.Integer(name, -1, INT32_MAX))
      s.repetition_context_size = static_cast<int>(*n < 0 ? INT32_MAX : *n);
  }
  ReadLogitBias(f, defaults, vocab_size, request);
}

// A seed; nullopt: the handler draws one.
std::optional<uint64_t> ReadSeed(Fields& f) {
  const Json* v = f.Find("seed");
  if (v == nullptr) return std::nullopt;
  if (v->is_number_unsigned()) return v->get<uint64_t>();
  const auto x = Fields::ToInteger(*v);
  if (!x || *x < -1) {
    f.Wrong("seed", *v, "an integer from -1 (random)");
    return std::nullopt;
  }
  return *x < 0 ? std::nullopt : std::optional<uint64_t>(static_cast<uint64_t>(*x));
}

// A limit beyond what an int64 holds is the largest one.
std::optional<int64_t> ReadTokenLimit(Fields& f, const char* name) {
  const Json* v = f.Find(name);
  if (v != nullptr && v->is_number() && v->get<double>() > 9.0e15) return INT64_MAX;
  return f.Integer(name, -1, INT64_MAX);
}

void ReadLimits(Fields& f, const RequestDefaults& defaults, int vocab_size, Request& request) {
  std::optional<int64_t> max_tokens;
  for (const char* name : {"n_predict", "max_tokens", "max_completion_tokens"}) {
    if (const auto n = ReadTokenLimit(f, name)) max_tokens = *n;
  }
  request.max_tokens = defaults.max_tokens.value_or(INT64_MAX);
  if (max_tokens && *max_tokens >= 0)
    request.max_tokens = std::min(request.max_tokens, *max_tokens);
  request.min_tokens = f.Integer("min_tokens", 0, INT32_MAX).value_or(0);
  request.ignore_eos = f.Bool("ignore_eos", false);
  const Json* ids = f.Find("stop_token_ids");
  if (ids == nullptr) return;
  if (!ids->is_array() || ids->size() > static_cast<size_t>(defaults.stop_token_ids_max)) {
    return f.Wrong(
        "stop_token_ids", *ids,
        "an array of at most " + std::to_string(defaults.stop_token_ids_max) + " token ids");
  }
  if (auto tokens = ReadTokenArray(f, "stop_token_ids", *ids, vocab_size))
    request.stop_token_ids = std::move(*tokens);
}

void ReadLogprobs(Fields& f, GenerationRequest& r) {
  constexpr int64_t kTopMax = 20;
  const auto top = f.Integer("top_logprobs", 0, kTopMax);
  const Json* v = f.Find("logprobs");
  if (v != nullptr && v->is_number() && r.route == Route::kCompletion) {
    if (const auto n = f.Integer("logprobs", 0, kTopMax)) r.engine.logprobs = static_cast<int>(*n);
  } else if (f.Bool("logprobs", false)) {
    r.engine.logprobs = static_cast<int>(top.value_or(0));
  } else if (top.value_or(0) > 0) {
    f.Fail(BadField("top_logprobs", "given without logprobs: true"));
  }
  r.engine.prompt_logprobs = r.echo && r.engine.logprobs.has_value();
}

void ReadStream(Fields& f, GenerationRequest& r) {
  r.stream = f.Bool("stream", false);
  if (const Json* options = f.Find("stream_options")) {
    if (!options->is_object()) return f.Wrong("stream_options", *options, "an object");
    Fields inner(*options);
    r.include_usage = inner.Bool("include_usage", false);
    if (inner.error()) f.Fail(BadField("stream_options", inner.error()->message));
  }
  r.return_progress = f.Bool("return_progress", false);
  r.return_tokens = f.Bool("return_tokens", false);
  r.timings_per_token = f.Bool("timings_per_token", false);
}

constexpr const char* kUnsupported[] = {
    "json_schema",   "grammar",         "guided_json",        "guided_regex",
    "guided_choice", "guided_grammar",  "structured_outputs", "regex",
    "ebnf",          "functions",       "function_call",      "suffix",
    "lora",          "adapters",        "samplers",           "audio",
    "chat_template", "documents",       "role_mapping",       "logits_processors",
    "bad_words",     "prompt_logprobs", "allowed_token_ids"};

bool IsNeutral(const std::string& name, const Json& v) {
  if (v.is_string()) {
    const auto& text = v.get_ref<const std::string&>();
    return text.empty() || (name == "function_call" && (text == "none" || text == "auto"));
  }
  return v == Json(false) || ((v.is_array() || v.is_object()) && v.empty());
}

// Fields of other servers that would change the result. Their neutral values are accepted.
void RefuseUnsupported(Fields& f) {
  for (const char* name : kUnsupported) {
    const Json* v = f.Find(name);
    if (v != nullptr && !IsNeutral(name, *v)) f.Fail(UnsupportedField(name));
  }
  if (const Json* format = f.Find("response_format")) {
    const bool text = format->is_object() && format->value("type", Json()) == "text";
    if (!text)
      f.Fail(UnsupportedField("response_format", "only {\"type\": \"text\"} is in this version"));
  }
  for (const auto& [name, neutral] : {std::pair{"n", 1},
                                      {"best_of", 1},
                                      {"typical_p", 1},
                                      {"mirostat", 0},
                                      {"dry_multiplier", 0},
                                      {"dynatemp_range", 0}}) {
    const auto v = f.Number(name, -1e9, 1e9);
    if (v && *v != neutral)
      f.Fail(UnsupportedField(name, "only " + std::to_string(neutral) + " is in this version"));
  }
  for (const char* name :
       {"top_n_sigma", "n_probs", "t_max_predict_ms", "n_indent", "truncate_prompt_tokens"}) {
    if (const auto v = f.Number(name, -1e9, 1e9); v && *v > 0) f.Fail(UnsupportedField(name));
  }
  for (const auto& [name, neutral] : {std::pair{"use_beam_search", false},
                                      {"include_stop_str_in_output", false},
                                      {"skip_special_tokens", true}}) {
    if (f.Bool(name, neutral) != neutral) f.Fail(UnsupportedField(name));
  }
  if (const Json* modalities = f.Find("modalities");
      modalities && *modalities != Json::array({"text"})) {
    f.Fail(UnsupportedField("modalities", "only [\"text\"] is in this version"));
  }
}

void ReadCacheFields(Fields& f, Request& request) {
  request.cache_prompt = f.Bool("cache_prompt", true);
  request.cache_salt = f.String("cache_salt", kSaltBytesMax).value_or("");
  request.priority =
      static_cast<int>(f.Integer("priority", -kPriorityMax, kPriorityMax).value_or(0));
  f.Integer("id_slot", -1, INT32_MAX);  // accepted; any slot serves any request
}

}  // namespace

Parsed<GenerationRequest> ParseGenerationRequest(Route route, std::string_view body,
                                                 const RequestDefaults& defaults, int vocab_size) {
  Parsed<Json> json = ParseObject(body);
  if (!json.value) return {std::nullopt, std::move(json.error)};
  Fields f(*json.value);
  GenerationRequest r;
  r.route = route;
  ReadStream(f, r);
  if (route == Route::kChat) {
    ReadMessages(f, *json.value, defaults, r);
    ReadTools(f, r);
    ReadTemplateArguments(f, r);
  } else {
    ReadPrompt(f, vocab_size, r);
    r.echo = f.Bool("echo", false);
  }
  ReadSampling(f, defaults, vocab_size, r.engine);
  ReadLimits(f, defaults, vocab_size, r.engine);
  ReadStop(f, defaults, r);
  ReadLogprobs(f, r);
  ReadCacheFields(f, r.engine);
  RefuseUnsupported(f);
  r.seed = ReadSeed(f);
  if (f.error()) return {std::nullopt, *f.error()};
  return {std::move(r), {}};
}

Parsed<GenerationRequest> ParsePromptRequest(std::string_view body, const RequestDefaults& defaults,
                                             int vocab_size) {
  Parsed<Json> json = ParseObject(body);
  if (!json.value) return {std::nullopt, std::move(json.error)};
  return ParseGenerationRequest(
      json.value->contains("messages") ? Route::kChat : Route::kCompletion, body, defaults,
      vocab_size);
}

Parsed<TokenizeRequest> ParseTokenizeRequest(std::string_view body) {
  Parsed<Json> json = ParseObject(body);
  if (!json.value) return {std::nullopt, std::move(json.error)};
  Fields f(*json.value);
  TokenizeRequest r;
  const auto content = f.String("content");
  if (!content) f.Fail(BadField("content", "missing, wanted a string"));
  r.content = content.value_or("");
  r.add_special = f.Bool("add_special", false);
  r.parse_special = f.Bool("parse_special", true);
  r.with_pieces = f.Bool("with_pieces", false);
  if (f.error()) return {std::nullopt, *f.error()};
  return {std::move(r), {}};
}

bool IsJsonObject(std::string_view text) { return ParseObject(text).value.has_value(); }

Parsed<std::vector<Token>> ParseDetokenizeRequest(std::string_view body, int vocab_size) {
  Parsed<Json> json = ParseObject(body);
  if (!json.value) return {std::nullopt, std::move(json.error)};
  Fields f(*json.value);
  std::optional<std::vector<Token>> tokens;
  const Json* array = f.Find("tokens");
  if (array == nullptr) {
    f.Fail(BadField("tokens", "missing, wanted an array of token ids"));
  } else if (!array->is_array()) {
    f.Wrong("tokens", *array, "an array of token ids");
  } else {
    tokens = ReadTokenArray(f, "tokens", *array, vocab_size);
  }
  if (f.error()) return {std::nullopt, *f.error()};
  return {std::move(tokens), {}};
}

}  // namespace cairn
