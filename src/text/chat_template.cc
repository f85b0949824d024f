#include "text/chat_template.h"

#include <ctime>

#include "text/bridge.h"
#include "text/utf8.h"

namespace cairn {

const std::string_view kDefaultChatTemplate =
    "{{- bos_token if bos_token else '' -}}\n"
    "{%- for message in messages -%}\n"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}\n"
    "{%- endfor -%}\n"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}";

struct ChatTemplate::Handle {
  ~Handle() {
    if (compiled != nullptr) bridge::cairn_template_free(compiled);
  }
  bridge::CairnTemplate* compiled = nullptr;
};

Result<ChatTemplate> ChatTemplate::Compile(std::string_view source) {
  if (!IsValidUtf8(source)) return InvalidArgument("[chat_template] source is not valid UTF-8");
  bridge::cairn_bridge_init();
  auto handle = std::make_shared<Handle>();
  bridge::Reply reply;
  const int32_t code =
      bridge::cairn_template_compile(bridge::SliceOf(source), &handle->compiled, reply.out());
  RETURN_IF_ERROR(reply.ToStatus(code, "chat_template"));
  ChatTemplate made;
  made.handle_ = std::move(handle);
  return made;
}

Result<std::string> ChatTemplate::Render(const ChatInput& input) const {
  for (const std::string* text : {&input.messages_json, &input.tools_json, &input.kwargs_json,
                                  &input.default_kwargs_json, &input.bos_token, &input.eos_token}) {
    if (!IsValidUtf8(*text)) return InvalidArgument("[chat_template] input is not valid UTF-8");
  }
  bridge::CairnRenderInput packed = {};
  packed.messages = bridge::SliceOf(input.messages_json);
  packed.tools = bridge::SliceOf(input.tools_json);
  packed.default_kwargs = bridge::SliceOf(input.default_kwargs_json);
  packed.kwargs = bridge::SliceOf(input.kwargs_json);
  packed.bos_token = bridge::SliceOf(input.bos_token);
  packed.eos_token = bridge::SliceOf(input.eos_token);
  packed.add_generation_prompt = input.add_generation_prompt ? 1 : 0;
  packed.now_unix_s = input.now_unix_s.value_or(static_cast<int64_t>(std::time(nullptr)));
  packed.steps_max = input.steps_max.value_or(0);
  bridge::Reply reply;
  const int32_t code = bridge::cairn_template_render(handle_->compiled, &packed, reply.out());
  RETURN_IF_ERROR(reply.ToStatus(code, "chat_template"));
  return std::string(reply.text());
}

}  // namespace cairn
