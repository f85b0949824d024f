// Request bodies. The first byte picks the route.

#include "fuzz.h"
#include "server/openai_json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cairn;
  if (size == 0) return 0;
  constexpr int kVocabulary = 1000;
  const std::string_view body = TextOf(data + 1, size - 1);
  const RequestDefaults defaults;
  switch (data[0] % 5) {
    case 0:
      (void)ParseGenerationRequest(Route::kChat, body, defaults, kVocabulary);
      break;
    case 1:
      (void)ParseGenerationRequest(Route::kCompletion, body, defaults, kVocabulary);
      break;
    case 2:
      (void)ParsePromptRequest(body, defaults, kVocabulary);
      break;
    case 3:
      (void)ParseTokenizeRequest(body);
      break;
    default:
      (void)ParseDetokenizeRequest(body, kVocabulary);
  }
  return 0;
}
