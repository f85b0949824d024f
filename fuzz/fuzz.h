// What every fuzz target is: bytes in, no crash, no leak, no unbounded work. libFuzzer's name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace cairn {

inline std::string_view TextOf(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// Cuts the text before the first `mark` off `rest` (all of it if there is none).
inline std::string_view CutAt(char mark, std::string_view* rest) {
  const size_t at = rest->find(mark);
  const std::string_view before = rest->substr(0, at);
  rest->remove_prefix(at == std::string_view::npos ? rest->size() : at + 1);
  return before;
}

}  // namespace cairn
