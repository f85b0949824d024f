// Chat template, messages and template arguments, each ended by a zero byte.

#include <cstdlib>
#include <string>

#include "fuzz.h"
#include "text/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cairn;
  constexpr uint64_t kSteps = 20'000;
  std::string_view rest = TextOf(data, size);
  const auto compiled = ChatTemplate::Compile(CutAt('\0', &rest));
  if (!compiled.ok()) return 0;
  ChatInput input;
  input.messages_json = CutAt('\0', &rest);
  input.kwargs_json = CutAt('\0', &rest);
  input.bos_token = "<s>";
  input.now_unix_s = 0;
  input.steps_max = kSteps;
  const auto text = compiled->Render(input);
  // What a render may write is bounded by its steps.
  if (text.ok() && text->size() > (size_t{4} << 20) + 8 * size) std::abort();
  return 0;
}
