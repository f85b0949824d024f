// JSON in, checked requests out; replies in, JSON out. The one place in the server that knows
// JSON's library. Parsing goes through a SAX filter: depth <= 128, <= 4,096 keys an object, <= 1M
// values; duplicate keys: the last wins; bytes must be UTF-8. Threads: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "server/openai_types.h"

namespace cairn {

// -- Requests. The ApiError's message says which field, what it got, what was wanted.
template <typename T>
struct Parsed {
  std::optional<T> value;
  ApiError error;  // if there is no value
};
Parsed<GenerationRequest> ParseGenerationRequest(Route route, std::string_view body,
                                                 const RequestDefaults& defaults, int vocab_size);

struct TokenizeRequest {
  std::string content;
  bool add_special = false, parse_special = true, with_pieces = false;
};
Parsed<TokenizeRequest> ParseTokenizeRequest(std::string_view body);
Parsed<std::vector<Token>> ParseDetokenizeRequest(std::string_view body, int vocab_size);
// /v1/cache/explain and /apply-template take what the generation routes take: explain a chat
// (messages) or a prompt, whichever is there.
Parsed<GenerationRequest> ParsePromptRequest(std::string_view body, const RequestDefaults& defaults,
                                             int vocab_size);

bool IsJsonObject(std::string_view text);

// -- Replies
std::string ErrorJson(const ApiError& error);
std::string WholeReplyJson(const ReplyHead& head, const WholeReply& reply);

// Stream pieces, each the JSON of one "data:" line.
struct ChunkExtra {
  std::span<const TokenEntry> logprobs;  // entries released with this text
  bool has_logprobs = false;
  int logprob_count = 0;
  std::span<const Token> tokens;  // return_tokens
  bool has_tokens = false;
  const Timings* timings = nullptr;  // timings_per_token
};
std::string RoleChunkJson(const ReplyHead& head);  // chat only: the first
std::string TextChunkJson(const ReplyHead& head, std::string_view text, const ChunkExtra& extra);
std::string ReasoningChunkJson(const ReplyHead& head, std::string_view text,
                               const ChunkExtra& extra);
// The finish chunk; `usage` set where no usage chunk follows (then cairn and timings travel here).
std::string FinishChunkJson(const ReplyHead& head, std::string_view finish_reason,
                            const UsageInfo* usage);
std::string UsageChunkJson(const ReplyHead& head, const UsageInfo& usage);
std::string ProgressChunkJson(const ReplyHead& head, int64_t total, int64_t cached,
                              int64_t processed, double time_ms);

// What /v1/models and /props say of the model.
struct ServedModel {
  std::string name, architecture, quantization, path;
  int64_t context_length = 0, trained_context_length = 0, parameter_count = 0, vocab_size = 0;
  uint64_t weight_bytes = 0, state_bytes = 0, kv_bytes_per_token = 0;
  bool trimmable = false;
};
std::string ModelsJson(const std::string& id, int64_t created, const ServedModel& model);
std::string ModelJson(const std::string& id, int64_t created, const ServedModel& model);
std::string PropsJson(const ServedModel& model, const std::string& chat_template,
                      const std::string& bos, const std::string& eos, int slots,
                      bool cache_enabled);
std::string TokenizeJson(std::span<const Token> tokens, const std::vector<std::string>* pieces);
std::string DetokenizeJson(const std::string& content);
std::string ApplyTemplateJson(const std::string& prompt);
std::string HealthJson(std::string_view status);
std::string QuoteJson(std::string_view text);  // a JSON string, quotes included

}  // namespace cairn
