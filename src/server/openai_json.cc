// Replies -> JSON. Key order is OpenAI's, so that a person finds what they look for.
#include "server/openai_json.h"

#include <nlohmann/json.hpp>

#include <cmath>
#include <utility>

#include "text/utf8.h"

namespace cairn {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kLogprobMin = -9999.0;  // JSON has no infinity; the value other servers write

// Broken UTF-8 (a token that is part of a character) is written as U+FFFD.
std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

double Finite(double logprob) { return std::isfinite(logprob) ? logprob : kLogprobMin; }

Json BytesOf(const std::string& bytes) {
  Json array = Json::array();
  for (const char c : bytes) array.push_back(static_cast<unsigned char>(c));
  return array;
}

// -- Logprobs

Json ContentLogprobs(std::span<const TokenEntry> entries) {
  Json content = Json::array();
  for (const TokenEntry& e : entries) {
    Json top = Json::array();
    for (const TokenEntry::Top& t : e.top) {
      top.push_back({{"token", t.bytes},
                     {"id", t.token},
                     {"logprob", Finite(t.logprob)},
                     {"bytes", BytesOf(t.bytes)}});
    }
    content.push_back({{"token", e.bytes},
                       {"id", e.token},
                       {"logprob", e.logprob ? Json(Finite(*e.logprob)) : Json()},
                       {"bytes", BytesOf(e.bytes)},
                       {"top_logprobs", std::move(top)}});
  }
  return content;
}

// A token as a key. Parts of characters get OpenAI's form: as U+FFFD they would all be one key.
std::string KeyOf(const std::string& bytes) {
  if (IsValidUtf8(bytes)) return bytes;
  constexpr char kDigits[] = "0123456789abcdef";
  std::string key = "bytes:";
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    key += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return key;
}

// The arrays of the legacy completions route. Offsets count characters of the text, as OpenAI's do.
Json LegacyLogprobs(std::span<const TokenEntry> entries, int top_count) {
  Json tokens = Json::array(), logprobs = Json::array(), tops = Json::array(),
       offsets = Json::array();
  for (const TokenEntry& e : entries) {
    tokens.push_back(e.bytes);
    logprobs.push_back(e.logprob ? Json(Finite(*e.logprob)) : Json());
    Json top = Json::object();
    // Two tokens may have one text; the better one stays.
    for (const TokenEntry::Top& t : e.top) top.emplace(KeyOf(t.bytes), Finite(t.logprob));
    tops.push_back(e.logprob && top_count > 0 ? std::move(top) : Json());
    offsets.push_back(e.text_offset);
  }
  return {{"tokens", std::move(tokens)},
          {"token_logprobs", std::move(logprobs)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)},
          {"content", ContentLogprobs(entries)}};
}

Json LogprobsOf(Route route, std::span<const TokenEntry> entries, int top_count) {
  if (route == Route::kCompletion) return LegacyLogprobs(entries, top_count);
  return {{"content", ContentLogprobs(entries)}, {"refusal", nullptr}};
}

// -- What a reply says about itself

Json UsageOf(const UsageInfo& u) {
  return {{"prompt_tokens", u.reuse.prompt_tokens},
          {"completion_tokens", u.completion_tokens},
          {"total_tokens", u.reuse.prompt_tokens + u.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", u.reuse.restore_point}}},
          {"completion_tokens_details", {{"reasoning_tokens", u.reasoning_tokens}}}};
}

Json ReuseOf(const ReuseReport& r) {
  return {{"restore_point", r.restore_point},
          {"replayed_tokens", r.replayed_tokens()},
          {"miss_reason", r.miss_reason ? Json(MissReasonName(*r.miss_reason)) : Json()},
          {"divergence_token", r.matched < r.prompt_tokens ? Json(r.matched) : Json()}};
}

Json TimingsOf(const Timings& t) {
  auto rate = [](int64_t n, double ms) { return ms > 0 ? 1e3 * static_cast<double>(n) / ms : 0.0; };
  auto each = [](int64_t n, double ms) { return n > 0 ? ms / static_cast<double>(n) : 0.0; };
  return {{"cache_n", t.cache_n},
          {"prompt_n", t.prompt_n},
          {"prompt_ms", t.prompt_ms},
          {"prompt_per_token_ms", each(t.prompt_n, t.prompt_ms)},
          {"prompt_per_second", rate(t.prompt_n, t.prompt_ms)},
          {"predicted_n", t.predicted_n},
          {"predicted_ms", t.predicted_ms},
          {"predicted_per_token_ms", each(t.predicted_n, t.predicted_ms)},
          {"predicted_per_second", rate(t.predicted_n, t.predicted_ms)}};
}

void AddUsage(Json& object, const UsageInfo& usage) {
  object["usage"] = UsageOf(usage);
  object["cairn"] = ReuseOf(usage.reuse);
  object["timings"] = TimingsOf(usage.timings);
}

// -- Chunks

Json Head(const ReplyHead& head, const char* chat_object) {
  return {{"id", head.id},
          {"object", head.route == Route::kChat ? chat_object : "text_completion"},
          {"created", head.created},
          {"model", head.model}};
}

Json Chunk(const ReplyHead& head, Json choice) {
  Json chunk = Head(head, "chat.completion.chunk");
  chunk["choices"] = Json::array({std::move(choice)});
  return chunk;
}

// A choice with a delta (chat) or a text (completions).
Json StreamChoice(const ReplyHead& head, Json delta, std::string_view text) {
  Json choice = {{"index", 0}};
  if (head.route == Route::kChat) {
    choice["delta"] = std::move(delta);
  } else {
    choice["text"] = text;
  }
  choice["logprobs"] = nullptr;
  choice["finish_reason"] = nullptr;
  return choice;
}

std::string PieceJson(const ReplyHead& head, Json choice, const ChunkExtra& extra) {
  if (extra.has_logprobs)
    choice["logprobs"] = LogprobsOf(head.route, extra.logprobs, extra.logprob_count);
  if (extra.has_tokens)
    choice["tokens"] = Json(std::vector<Token>(extra.tokens.begin(), extra.tokens.end()));
  Json chunk = Chunk(head, std::move(choice));
  if (extra.timings != nullptr) chunk["timings"] = TimingsOf(*extra.timings);
  return Dump(chunk);
}

Json ModelObject(const std::string& id, int64_t created, const ServedModel& m) {
  return {{"id", id},
          {"object", "model"},
          {"created", created},
          {"owned_by", "cairn"},
          {"meta",
           {{"name", m.name},
            {"architecture", m.architecture},
            {"quantization", m.quantization},
            {"n_vocab", m.vocab_size},
            {"n_ctx", m.context_length},
            {"n_ctx_train", m.trained_context_length},
            {"n_params", m.parameter_count},
            {"size", m.weight_bytes},
            {"state_bytes", m.state_bytes},
            {"kv_bytes_per_token", m.kv_bytes_per_token},
            {"trimmable", m.trimmable}}}};
}

}  // namespace

ApiError ToApiError(const Status& status) {
  ApiError e;
  e.message = status.message();
  switch (status.code()) {
    case StatusCode::kInvalidArgument:
      break;
    case StatusCode::kContextLength:
      e.code = "context_length_exceeded";
      break;
    case StatusCode::kUnsupported:
      e.code = "unsupported";
      break;
    case StatusCode::kNotFound:
      e.http_status = 404;
      e.code = "not_found";
      break;
    case StatusCode::kResourceExhausted:
      e.http_status = 429;
      e.type = "rate_limit_error";
      e.code = "queue_full";
      e.retry_after_s = 1;
      break;
    case StatusCode::kUnavailable:
      e.http_status = 503;
      e.type = "unavailable_error";
      e.code = "unavailable";
      e.retry_after_s = 1;
      break;
    case StatusCode::kDeadlineExceeded:
      e.http_status = 503;
      e.type = "timeout_error";
      e.code = "request_timeout";
      e.retry_after_s = 1;
      break;
    default:
      e.http_status = 500;
      e.type = "server_error";
      e.code = StatusCodeName(status.code());
      break;
  }
  return e;
}

std::string ErrorJson(const ApiError& e) {
  auto or_null = [](const std::string& s) { return s.empty() ? Json() : Json(s); };
  Json error = {{"message", e.message},
                {"type", e.type},
                {"param", or_null(e.param)},
                {"code", or_null(e.code)}};
  if (e.n_prompt_tokens) error["n_prompt_tokens"] = *e.n_prompt_tokens;
  if (e.n_ctx) error["n_ctx"] = *e.n_ctx;
  return Dump({{"error", std::move(error)}});
}

std::string WholeReplyJson(const ReplyHead& head, const WholeReply& reply) {
  Json choice = {{"index", 0}};
  if (head.route == Route::kChat) {
    Json message = {{"role", "assistant"}, {"content", reply.text}};
    if (!reply.reasoning.empty()) {
      message["reasoning_content"] = reply.reasoning;
      message["reasoning"] = reply.reasoning;
    }
    choice["message"] = std::move(message);
  } else {
    choice["text"] = reply.text;
  }
  choice["logprobs"] =
      reply.logprobs ? LogprobsOf(head.route, *reply.logprobs, reply.logprob_count) : Json();
  choice["finish_reason"] = reply.finish_reason;
  if (reply.tokens) choice["tokens"] = *reply.tokens;
  Json object = Head(head, "chat.completion");
  object["choices"] = Json::array({std::move(choice)});
  AddUsage(object, reply.usage);
  return Dump(object);
}

std::string RoleChunkJson(const ReplyHead& head) {
  return Dump(Chunk(head, StreamChoice(head, {{"role", "assistant"}, {"content", ""}}, "")));
}

std::string TextChunkJson(const ReplyHead& head, std::string_view text, const ChunkExtra& extra) {
  return PieceJson(head, StreamChoice(head, {{"content", text}}, text), extra);
}

std::string ReasoningChunkJson(const ReplyHead& head, std::string_view text,
                               const ChunkExtra& extra) {
  return PieceJson(
      head, StreamChoice(head, {{"reasoning_content", text}, {"reasoning", text}}, text), extra);
}

std::string FinishChunkJson(const ReplyHead& head, std::string_view finish_reason,
                            const UsageInfo* usage) {
  Json choice = StreamChoice(head, Json::object(), "");
  choice["finish_reason"] = finish_reason;
  Json chunk = Chunk(head, std::move(choice));
  if (usage != nullptr) {
    chunk["cairn"] = ReuseOf(usage->reuse);
    chunk["timings"] = TimingsOf(usage->timings);
  }
  return Dump(chunk);
}

std::string UsageChunkJson(const ReplyHead& head, const UsageInfo& usage) {
  Json chunk = Head(head, "chat.completion.chunk");
  chunk["choices"] = Json::array();
  AddUsage(chunk, usage);
  return Dump(chunk);
}

std::string ProgressChunkJson(const ReplyHead& head, int64_t total, int64_t cached,
                              int64_t processed, double time_ms) {
  Json chunk = Chunk(head, StreamChoice(head, Json::object(), ""));
  chunk["prompt_progress"] = {
      {"total", total}, {"cache", cached}, {"processed", processed}, {"time_ms", time_ms}};
  return Dump(chunk);
}

std::string ModelsJson(const std::string& id, int64_t created, const ServedModel& model) {
  return Dump({{"object", "list"}, {"data", Json::array({ModelObject(id, created, model)})}});
}

std::string ModelJson(const std::string& id, int64_t created, const ServedModel& model) {
  return Dump(ModelObject(id, created, model));
}

std::string PropsJson(const ServedModel& m, const std::string& chat_template,
                      const std::string& bos, const std::string& eos, int slots,
                      bool cache_enabled) {
  return Dump({{"default_generation_settings", {{"n_ctx", m.context_length}}},
               {"total_slots", slots},
               {"model_path", m.path},
               {"chat_template", chat_template},
               {"bos_token", bos},
               {"eos_token", eos},
               {"modalities", {{"vision", false}, {"audio", false}}},
               {"build_info", "cairn"},
               {"is_sleeping", false},
               {"cache_enabled", cache_enabled}});
}

std::string TokenizeJson(std::span<const Token> tokens, const std::vector<std::string>* pieces) {
  Json array = Json::array();
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (pieces == nullptr) {
      array.push_back(tokens[i]);
      continue;
    }
    const std::string& piece = (*pieces)[i];
    // llama.cpp's form: text, or the bytes where they are not text by themselves.
    Json shown = piece;
    try {
      (void)shown.dump();
    } catch (const Json::type_error&) {
      shown = BytesOf(piece);
    }
    array.push_back({{"id", tokens[i]}, {"piece", std::move(shown)}});
  }
  return Dump({{"tokens", std::move(array)}});
}

std::string DetokenizeJson(const std::string& content) { return Dump({{"content", content}}); }
std::string ApplyTemplateJson(const std::string& prompt) { return Dump({{"prompt", prompt}}); }
std::string HealthJson(std::string_view status) { return Dump({{"status", status}}); }
std::string QuoteJson(std::string_view text) { return Dump(Json(text)); }

}  // namespace cairn
