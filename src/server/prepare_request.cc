#include "server/prepare_request.h"

#include <string_view>
#include <utility>

#include "server/answer_text.h"

namespace cairn {
namespace {

constexpr std::string_view kThinkTag = "<think>";

ReasoningSplitter::Begin ReasoningBegin(const ServeContext& context, Route route,
                                        const std::string& prompt_text) {
  if (route != Route::kChat || !context.has_think_tags) return ReasoningSplitter::Begin::kPlain;
  const size_t end = prompt_text.find_last_not_of(" \t\r\n");
  const std::string_view text = std::string_view(prompt_text).substr(0, end + 1);
  return text.ends_with(kThinkTag) ? ReasoningSplitter::Begin::kOpen
                                   : ReasoningSplitter::Begin::kMayOpen;
}

// Control tokens give no text, so a stop string that spells one is met where it is sampled.
void StopAtControlTokens(const Tokenizer& tokenizer, GenerationRequest& r) {
  for (const std::string& stop : r.stop) {
    const auto tokens = tokenizer.Encode(stop, {.add_special = false, .parse_special = true});
    if (tokens.ok() && tokens->size() == 1 && tokenizer.IsSpecial((*tokens)[0]))
      r.engine.stop_token_ids.push_back((*tokens)[0]);
  }
}

PreparedRequest Refused(ApiError error) {
  PreparedRequest p;
  p.error = std::move(error);
  return p;
}

}  // namespace

PreparedRequest PrepareRequest(const ServeContext& context, Route route, const std::string& body) {
  PreparedRequest p;
  const LoadedService& loaded = context.loaded;
  auto parsed =
      ParseGenerationRequest(route, body, context.defaults, loaded.tokenizer->vocab_size());
  if (!parsed.value) return Refused(std::move(parsed.error));
  GenerationRequest& r = *parsed.value;
  auto prompt = BuildPrompt(*loaded.prompts, r);
  if (!prompt.ok()) return Refused(ToApiError(prompt.status()));
  p.reasoning = ReasoningBegin(context, route, prompt->text);
  if (r.echo)
    p.echo = r.prompt_text ? *r.prompt_text : loaded.tokenizer->Decode(prompt->tokens, false);
  if (r.engine.prompt_logprobs)
    p.echo_offsets = PromptOffsets(*loaded.tokenizer, prompt->tokens, p.echo);
  StopAtControlTokens(*loaded.tokenizer, r);
  p.stops = std::make_shared<const StopSet>(r.stop);
  r.engine.prompt = std::move(prompt->tokens);
  r.engine.system_end = prompt->system_end;
  r.engine.tail_begin = prompt->tail_begin;
  r.engine.raw = prompt->raw;
  r.engine.has_stop_strings = !p.stops->empty();
  r.engine.deadline_ms = context.request_timeout_ms;
  p.request = std::move(r);
  return p;
}

Result<Prompt> BuildPrompt(const PromptBuilder& prompts, GenerationRequest& r) {
  if (r.route == Route::kChat) {
    return prompts.FromChat({.messages_json = r.messages_json,
                             .tools_json = r.tools_json,
                             .kwargs_json = r.kwargs_json,
                             .add_generation_prompt = r.add_generation_prompt});
  }
  if (r.prompt_tokens) return prompts.FromTokens(std::move(*r.prompt_tokens));
  return prompts.FromText(r.prompt_text.value_or(""));
}

}  // namespace cairn
