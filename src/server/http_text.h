// Small texts of HTTP. Threads: pure functions.
#pragma once

#include <string>
#include <string_view>

namespace cairn {

const char* ReasonPhrase(int status);
// %41 -> A; what is no valid escape stays as it is.
std::string PercentDecoded(std::string_view text);
std::string AsciiLower(std::string_view text);

}  // namespace cairn
