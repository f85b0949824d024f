#include "server/admin_handler.h"

#include <atomic>
#include <exception>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "engine/cache_admin.h"
#include "server/admin_json.h"
#include "server/chat_handler.h"
#include "server/openai_json.h"
#include "server/prepare_request.h"

namespace cairn {
namespace {

constexpr size_t kPreviewTokensMax = 16;
constexpr size_t kIdDigitsMax = 18;

JobAnswer Failed(const Status& status) { return {"", ToApiError(status)}; }

JobAnswer RunSafely(const std::function<JobAnswer()>& job) {
  try {
    return job();
  } catch (const std::bad_alloc&) {  // these texts need none
    JobAnswer answer{"", ApiError{}};
    answer.error->http_status = 500;
    answer.error->type = "server_error";
    answer.error->message = "out of memory";
    return answer;
  } catch (const std::exception& e) {
    return Failed(Internal(std::string("[server] ") + e.what()));
  }
}

// The worker makes the answer, the IO thread gives it: when told to, or at a tick.
struct PendingAnswer {
  explicit PendingAnswer(ApiReply r) : reply(std::move(r)) {}

  void Give() {
    if (!is_ready.exchange(false)) return;
    try {
      if (answer.error)
        reply.Error(*answer.error);
      else
        reply.Json(200, std::move(answer.body));
    } catch (const std::exception&) {
      reply.http().Abort();
    }
  }

  ApiReply reply;
  JobAnswer answer;
  std::atomic<bool> is_ready{false};
};

Result<Prompt> ParseAndBuild(const ServeContext& context, const std::string& body, Request* asked,
                             std::optional<ApiError>* refused) {
  auto parsed = ParsePromptRequest(body, context.defaults, context.loaded.tokenizer->vocab_size());
  if (!parsed.value) {
    *refused = std::move(parsed.error);
    return InvalidArgument("refused");
  }
  *asked = parsed.value->engine;
  return BuildPrompt(*context.loaded.prompts, *parsed.value);
}

// What the request itself keeps from being reused.
void WithoutWhatItForbids(const Request& asked, ReuseReport& reuse) {
  if (!asked.cache_prompt) {
    reuse = {.prompt_tokens = reuse.prompt_tokens,
             .restore_point = 0,
             .matched = 0,
             .miss_reason = MissReason::kDisabledByRequest};
  } else if (asked.prompt_logprobs) {
    reuse.restore_point = 0;
    reuse.miss_reason = MissReason::kPromptLogprobs;
  }
}

// Does something with a node of the cache; id: as the path has it.
JobAnswer ForNode(const std::string& id, const char* done,
                  const std::function<Status(uint64_t)>& act) {
  if (id.empty() || id.size() > kIdDigitsMax ||
      id.find_first_not_of("0123456789") != std::string::npos)
    return Failed(NotFound("[cache] no node \"" + id.substr(0, 40) + "\", wanted a number"));
  const Status status = act(std::stoull(id));
  if (!status.ok()) return Failed(status);
  return {std::string("{\"") + done + "\":" + id + "}", {}};
}

}  // namespace

void AnswerFromWorker(ServeContext& context, ApiReply reply, size_t body_bytes,
                      std::function<JobAnswer()> job) {
  const auto pending = std::make_shared<PendingAnswer>(std::move(reply));
  HttpServer& http = context.http;
  pending->reply.http().SetEvents(
      {.gone = {}, .drained = {}, .tick = [pending] { pending->Give(); }});
  const bool taken = context.WorkFor(body_bytes).Push([pending, job = std::move(job), &http] {
    pending->answer = RunSafely(job);
    pending->is_ready = true;
    try {
      http.Post([pending] { pending->Give(); });
    } catch (const std::exception&) {  // no memory: the next tick gives it
    }
  });
  if (!taken)
    pending->reply.Error(
        ToApiError(ResourceExhausted("[server] too many requests wait to be read")));
}

JobAnswer TokenizeJob(const LoadedService& loaded, const std::string& body) {
  const auto parsed = ParseTokenizeRequest(body);
  if (!parsed.value) return {"", parsed.error};
  const auto tokens = loaded.tokenizer->Encode(
      parsed.value->content,
      {.add_special = parsed.value->add_special, .parse_special = parsed.value->parse_special});
  if (!tokens.ok()) return Failed(tokens.status());
  std::vector<std::string> pieces;
  if (parsed.value->with_pieces) {
    for (const Token t : *tokens) pieces.emplace_back(loaded.tokenizer->TokenBytes(t));
  }
  return {TokenizeJson(*tokens, parsed.value->with_pieces ? &pieces : nullptr), {}};
}

JobAnswer DetokenizeJob(const LoadedService& loaded, const std::string& body) {
  const auto parsed = ParseDetokenizeRequest(body, loaded.tokenizer->vocab_size());
  if (!parsed.value) return {"", parsed.error};
  return {DetokenizeJson(loaded.tokenizer->Decode(*parsed.value, false)), {}};
}

JobAnswer ApplyTemplateJob(const ServeContext& context, const std::string& body) {
  auto parsed = ParseGenerationRequest(Route::kChat, body, context.defaults,
                                       context.loaded.tokenizer->vocab_size());
  if (!parsed.value) return {"", parsed.error};
  const GenerationRequest& r = *parsed.value;
  const auto text =
      context.loaded.prompts->RenderChat({.messages_json = r.messages_json,
                                          .tools_json = r.tools_json,
                                          .kwargs_json = r.kwargs_json,
                                          .add_generation_prompt = r.add_generation_prompt});
  if (!text.ok()) return Failed(text.status());
  return {ApplyTemplateJson(*text), {}};
}

JobAnswer SlotsJob(const LoadedService& loaded) {
  std::vector<EngineView::SequenceInfo> sequences;
  const Status status =
      loaded.engine->Run([&](EngineView& view) { sequences = std::move(view.sequences); });
  if (!status.ok()) return Failed(status);
  return {SlotsJson(sequences, loaded.engine->options().decode_concurrency,
                    loaded.model.context_length),
          {}};
}

JobAnswer ShowCacheJob(const LoadedService& loaded) {
  const auto view = ViewCache(*loaded.engine, kPreviewTokensMax);
  if (!view.ok()) return Failed(view.status());
  return {CacheJson(*view,
                    [&](std::span<const Token> tokens) {
                      return loaded.tokenizer->Decode(tokens, false);
                    }),
          {}};
}

JobAnswer ExplainJob(const ServeContext& context, const std::string& body) {
  Request asked;
  std::optional<ApiError> refused;
  const auto prompt = ParseAndBuild(context, body, &asked, &refused);
  if (refused) return {"", refused};
  if (!prompt.ok()) return Failed(prompt.status());
  auto explanation = ExplainPrompt(*context.loaded.engine, prompt->tokens, asked.cache_salt);
  if (!explanation.ok()) return Failed(explanation.status());
  WithoutWhatItForbids(asked, explanation->reuse);
  return {ExplanationJson(*explanation), {}};
}

JobAnswer ClearJob(const LoadedService& loaded) {
  const Status status = ClearCache(*loaded.engine);
  if (!status.ok()) return Failed(status);
  return {R"({"cleared":true})", {}};
}

JobAnswer DropJob(const LoadedService& loaded, const std::string& id) {
  return ForNode(id, "dropped", [&](uint64_t node) { return DropNode(*loaded.engine, node); });
}

JobAnswer PinJob(const LoadedService& loaded, const std::string& id) {
  JobAnswer answer =
      ForNode(id, "pinned", [&](uint64_t node) { return PinNode(*loaded.engine, node); });
  // Not a matter of waiting, as a full queue is: another pin must go first.
  if (answer.error && answer.error->http_status == 429) {
    answer.error->http_status = 409;
    answer.error->type = "invalid_request_error";
    answer.error->code = "pins_full";
    answer.error->retry_after_s.reset();
  }
  return answer;
}

JobAnswer UnpinJob(const LoadedService& loaded, const std::string& id) {
  return ForNode(id, "unpinned", [&](uint64_t node) { return UnpinNode(*loaded.engine, node); });
}

}  // namespace cairn
