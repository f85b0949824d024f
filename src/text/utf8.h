// UTF-8: validity, and the replacement rule for broken bytes (Unicode 3.9, "maximal subparts": what
// Python's bytes.decode("utf-8", errors="replace") and Rust's from_utf8_lossy do).
// Threads: pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace cairn {

enum class Utf8Kind {
  kCharacter,   // a whole character
  kIncomplete,  // the input ends inside a character that more bytes could complete
  kBroken,      // bytes that can never be part of a character: one U+FFFD stands for them
};

struct Utf8Piece {
  Utf8Kind kind;
  size_t size;  // bytes it takes, >= 1
};

// The piece at the start of s. REQUIRES: s is not empty.
Utf8Piece NextUtf8(std::string_view s);

bool IsValidUtf8(std::string_view s);

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

// s with each broken piece, and an incomplete end, replaced by U+FFFD.
std::string ReplaceBrokenUtf8(std::string_view s);

}  // namespace cairn
