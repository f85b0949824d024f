// The requests of the OpenAI-shaped routes as checked values, and what replies are made of. No JSON
// library in here. Threads: plain data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/token.h"
#include "engine/request.h"
#include "engine/token_stream.h"

namespace cairn {

// Defaults for what a request does not say (command line), and limits.
struct RequestDefaults {
  SamplingParams sampling;
  std::optional<int64_t> max_tokens;         // --max-tokens: default and upper limit
  int stop_strings_max = 128;                // clients of group chats send one for each name
  size_t stop_bytes_max = size_t{64} << 10;  // of all stop strings together
  int logit_bias_max = 1024;
  int stop_token_ids_max = 128;
  int messages_max = 16384;
};

enum class Route { kChat, kCompletion };

// A checked request of /v1/chat/completions or /v1/completions.
struct GenerationRequest {
  Route route = Route::kChat;
  // Chat
  std::string messages_json;  // array, as the client sent it (key order kept)
  std::string tools_json;     // array; empty for none
  std::string kwargs_json;    // chat_template_kwargs; empty for none
  bool add_generation_prompt = true;
  // Completion: one of the two
  std::optional<std::string> prompt_text;
  std::optional<std::vector<Token>> prompt_tokens;
  bool echo = false;
  // Both
  Request engine;  // sampling, limits, cache fields; prompt still empty
  std::vector<std::string> stop;
  std::optional<uint64_t> seed;  // nullopt: the handler draws one into engine.sampling.seed
  bool stream = false;
  bool include_usage = false;
  bool return_progress = false;
  bool return_tokens = false;
  bool timings_per_token = false;
};

// An error reply: status and the OpenAI error object.
struct ApiError {
  int http_status = 400;
  std::string message;
  std::string type = "invalid_request_error";
  std::string param;                       // empty: null
  std::string code;                        // empty: null
  std::optional<int64_t> n_prompt_tokens;  // context overflow
  std::optional<int64_t> n_ctx;
  std::optional<int> retry_after_s;  // also a Retry-After header
};

// A Status as the reply it deserves: 400 invalid_argument/unsupported/context length, 404, 429,
// 503, 500.
ApiError ToApiError(const Status& status);

// One generated token with what the client may ask about it.
struct TokenEntry {
  Token token;
  std::string bytes;              // TokenBytes
  std::optional<double> logprob;  // nullopt: the first token of an echoed prompt
  int64_t text_offset = 0;        // completions: characters of the text before it
  struct Top {
    Token token;
    std::string bytes;
    double logprob;
  };
  std::vector<Top> top = {};
};

struct Timings {  // llama.cpp's
  int64_t cache_n = 0, prompt_n = 0, predicted_n = 0;
  double prompt_ms = 0, predicted_ms = 0;
};

struct UsageInfo {
  ReuseReport reuse;
  int64_t completion_tokens = 0;
  int64_t reasoning_tokens = 0;
  Timings timings;
};

// What all chunks and the final object of one reply share.
struct ReplyHead {
  std::string id;       // "chatcmpl-..." or "cmpl-..."
  int64_t created = 0;  // unix seconds
  std::string model;
  Route route = Route::kChat;
};

struct WholeReply {
  std::string text;
  std::string reasoning;
  std::string finish_reason;                        // "stop", "length"
  std::optional<std::vector<TokenEntry>> logprobs;  // if asked for
  int logprob_count = 0;                            // top alternatives asked for
  std::optional<std::vector<Token>> tokens;         // return_tokens
  UsageInfo usage;
};

}  // namespace cairn
