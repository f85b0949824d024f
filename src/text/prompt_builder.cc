#include "text/prompt_builder.h"

#include <utility>

namespace cairn {

PromptBuilder::PromptBuilder(std::shared_ptr<const Tokenizer> tokenizer, ChatTemplate chat_template)
    : tokenizer_(std::move(tokenizer)),
      template_(std::move(chat_template)),
      headers_(LearnTurnHeaders(template_, *tokenizer_)) {}

Result<PromptBuilder> PromptBuilder::Create(std::shared_ptr<const Tokenizer> tokenizer,
                                            const PromptBuilderOptions& options) {
  const std::string_view source = options.template_source.empty()
                                      ? kDefaultChatTemplate
                                      : std::string_view(options.template_source);
  ASSIGN_OR_RETURN(ChatTemplate chat_template, ChatTemplate::Compile(source));
  PromptBuilder made(std::move(tokenizer), std::move(chat_template));
  made.default_kwargs_json_ = options.default_kwargs_json;
  return made;
}

Result<std::string> PromptBuilder::RenderChat(const ChatPrompt& chat) const {
  ChatInput input;
  input.messages_json = chat.messages_json;
  input.tools_json = chat.tools_json;
  input.kwargs_json = chat.kwargs_json;
  input.default_kwargs_json = default_kwargs_json_;
  input.add_generation_prompt = chat.add_generation_prompt;
  input.bos_token = tokenizer_->bos_text();
  input.eos_token = tokenizer_->eos_text();
  Result<std::string> text = template_.Render(input);
  // A prompt the template cannot write within its bounds is refused like one it cannot write.
  if (!text.ok() && text.status().code() == StatusCode::kResourceExhausted)
    return InvalidArgument(text.status().message());
  return text;
}

Result<Prompt> PromptBuilder::FromChat(const ChatPrompt& chat) const {
  Prompt prompt;
  ASSIGN_OR_RETURN(prompt.text, RenderChat(chat));
  // The template writes BOS itself where the model wants it.
  ASSIGN_OR_RETURN(prompt.tokens, tokenizer_->Encode(prompt.text, {.add_special = false}));
  const std::vector<TurnStart> turns = FindTurns(prompt.tokens, headers_);
  prompt.system_end = FindSystemEnd(turns);
  prompt.tail_begin = static_cast<int64_t>(prompt.tokens.size());
  if (chat.add_generation_prompt && !turns.empty() && turns.back().role == TurnRole::kAssistant) {
    prompt.tail_begin = turns.back().position;
  }
  return prompt;
}

Result<Prompt> PromptBuilder::FromText(std::string_view text) const {
  Prompt prompt;
  prompt.raw = true;
  prompt.text = text;
  ASSIGN_OR_RETURN(prompt.tokens, tokenizer_->Encode(text, {.add_special = true}));
  prompt.tail_begin = static_cast<int64_t>(prompt.tokens.size());
  return prompt;
}

Result<Prompt> PromptBuilder::FromTokens(std::vector<Token> tokens) const {
  for (const Token token : tokens) {
    if (!tokenizer_->IsValid(token)) {
      return InvalidArgument("[prompt] token " + std::to_string(token) +
                             " is outside the vocabulary, wanted 0 to " +
                             std::to_string(tokenizer_->vocab_size() - 1));
    }
  }
  Prompt prompt;
  prompt.raw = true;
  prompt.tokens = std::move(tokens);
  prompt.tail_begin = static_cast<int64_t>(prompt.tokens.size());
  return prompt;
}

}  // namespace cairn
