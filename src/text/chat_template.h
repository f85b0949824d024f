// Chat templates (Jinja) with the settings of transformers: messages in, prompt text out.
// Owns: the compiled template. Threads: const methods may be called from many threads at once.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace cairn {

// JSON travels as text, so that key order and numbers reach the prompt as the client sent them.
struct ChatInput {
  std::string messages_json;        // array of messages
  std::string tools_json;           // array; empty or "null" for none
  std::string kwargs_json;          // object: chat_template_kwargs; empty for none
  std::string default_kwargs_json;  // object: the server's own, where kwargs_json has no such key
  bool add_generation_prompt = true;
  std::string bos_token;
  std::string eos_token;
  std::optional<int64_t> now_unix_s;  // for strftime_now; absent: the clock
  std::optional<uint64_t> steps_max;  // of the template's program; absent: by the input's size
};

class ChatTemplate {
 public:
  // kInvalidArgument if the source is not a template. Small chats are rendered to find out what the
  // template reads; Render then joins content parts to a string, opens tool arguments sent as a
  // string, and renames the role developer, only where the template needs it.
  static Result<ChatTemplate> Compile(std::string_view source);

  // kInvalidArgument: the template refused the messages (raise_exception: its own words), or failed
  // on them, or the JSON is broken. kResourceExhausted: it took more steps than steps_max, or wrote
  // more than 4 MiB and 8 times the input.
  Result<std::string> Render(const ChatInput& input) const;

 private:
  struct Handle;
  ChatTemplate() = default;
  std::shared_ptr<const Handle> handle_;
};

// ChatML, for models that carry no template.
extern const std::string_view kDefaultChatTemplate;

}  // namespace cairn
