// tokenizer.json, a zero byte, a text to encode.

#include <string>

#include "fuzz.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cairn;
  std::string_view rest = TextOf(data, size);
  const std::string_view json = CutAt('\0', &rest);
  const auto tokenizer = Tokenizer::FromJson(json, R"({"bos_token":"<s>","eos_token":"</s>"})");
  if (!tokenizer.ok()) return 0;
  for (const std::string_view text : {std::string_view("Hello  w\xC3\xB6rld!\n 12345 <s>"), rest}) {
    const auto tokens = tokenizer->Encode(text, {.add_special = true});
    if (tokens.ok()) (void)tokenizer->Decode(*tokens, false);
  }
  return 0;
}
