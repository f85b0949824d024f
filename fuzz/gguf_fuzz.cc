// A GGUF file: header, metadata, tensors, and the tokenizer that its metadata describes.

#include <cstdlib>
#include <span>

#include "fuzz.h"
#include "gguf_tokenizer.h"
#include "model/gguf.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cairn;
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto file = GgufFile::FromBytes(bytes);
  if (!file.ok()) return 0;
  volatile unsigned sum = 0;
  for (const GgufTensor& tensor : file->tensors()) {
    if (file->FindTensor(tensor.name) == nullptr) std::abort();
    if (tensor.bytes.empty()) continue;
    sum = sum + static_cast<unsigned>(tensor.bytes.front()) +
          static_cast<unsigned>(tensor.bytes.back());
  }
  (void)file->ListTensors();
  const auto spec = ReadTokenizerSpec(*file);
  if (!spec.ok()) return 0;
  const auto tokenizer = Tokenizer::Create(*spec);
  if (tokenizer.ok()) (void)tokenizer->Encode("Hello  w\xC3\xB6rld! 123");
  return 0;
}
