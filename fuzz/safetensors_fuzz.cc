// A safetensors file: header length, JSON header, data.

#include <cstdlib>
#include <span>

#include "fuzz.h"
#include "model/hf/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cairn;
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto file = SafetensorsFile::FromBytes(bytes);
  if (!file.ok()) return 0;
  // What Open promises: each tensor lies inside, its shape fits its bytes, together they fill the
  // data.
  volatile unsigned sum = 0;
  uint64_t tensor_bytes = 0;
  for (const SafetensorsTensor& tensor : file->tensors()) {
    tensor_bytes += tensor.bytes.size();
    if (tensor.name.empty() || tensor.element_count() < 0) std::abort();
    if ((tensor.element_count() == 0) != tensor.bytes.empty()) std::abort();
    if (tensor.bytes.empty()) continue;
    if (tensor.bytes.data() < bytes.data() ||
        tensor.bytes.data() + tensor.bytes.size() > bytes.data() + size ||
        !file->Contains(tensor.bytes))
      std::abort();
    sum = sum + static_cast<unsigned>(tensor.bytes.front()) +
          static_cast<unsigned>(tensor.bytes.back());
    if (const auto type = WeightTypeFromDtype(tensor.dtype); type.has_value()) sum = sum + 1;
  }
  if (tensor_bytes > size) std::abort();
  return 0;
}
