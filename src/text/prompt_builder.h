// Parse -> Render -> Encode: what `serve` and `generate` were given becomes the token ids of a
// prompt. Nothing here remembers anything: the same input gives the same tokens.
// Owns: shares the tokenizer, holds the template. Threads: const methods from many threads at once.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/token.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"
#include "text/turn_headers.h"

namespace cairn {

struct Prompt {
  std::vector<Token> tokens;
  std::string text;        // the rendered chat, or the raw text; empty for a token array
  int64_t system_end = 0;  // positions [0, system_end) are the system part; 0 for raw prompts
  int64_t tail_begin = 0;  // the generation prompt begins here; tokens.size() if there is none
  bool raw = false;        // not a rendered chat
};

struct ChatPrompt {
  std::string messages_json;     // array
  std::string tools_json = {};   // array; empty for none
  std::string kwargs_json = {};  // chat_template_kwargs; empty for none
  bool add_generation_prompt = true;
};

struct PromptBuilderOptions {
  std::string template_source = {};      // empty: ChatML
  std::string default_kwargs_json = {};  // --chat-template-args; a request's kwargs win
};

class PromptBuilder {
 public:
  static Result<PromptBuilder> Create(std::shared_ptr<const Tokenizer> tokenizer,
                                      const PromptBuilderOptions& options);

  // The text the template gives; kInvalidArgument if it refuses the messages.
  Result<std::string> RenderChat(const ChatPrompt& chat) const;
  Result<Prompt> FromChat(const ChatPrompt& chat) const;
  Result<Prompt> FromText(std::string_view text) const;
  // kInvalidArgument if an id is outside the vocabulary.
  Result<Prompt> FromTokens(std::vector<Token> tokens) const;

  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const TurnHeaders& turn_headers() const { return headers_; }

 private:
  PromptBuilder(std::shared_ptr<const Tokenizer> tokenizer, ChatTemplate chat_template);

  std::shared_ptr<const Tokenizer> tokenizer_;
  ChatTemplate template_;
  TurnHeaders headers_;
  std::string default_kwargs_json_;
};

}  // namespace cairn
