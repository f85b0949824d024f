#include "text/utf8.h"

#include <cstdint>
#include <cstring>

namespace cairn {

Utf8Piece NextUtf8(std::string_view s) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(s[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {Utf8Kind::kCharacter, 1};
  size_t size;
  unsigned low = 0x80, high = 0xBF;  // allowed second bytes: no overlong forms, no surrogates
  if (lead >= 0xC2 && lead <= 0xDF) {
    size = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    size = 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    size = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {Utf8Kind::kBroken, 1};
  }
  for (size_t i = 1; i < size; ++i) {
    if (i == s.size()) return {Utf8Kind::kIncomplete, i};
    if (byte(i) < low || byte(i) > high) return {Utf8Kind::kBroken, i};
    low = 0x80;
    high = 0xBF;
  }
  return {Utf8Kind::kCharacter, size};
}

bool IsValidUtf8(std::string_view s) {
  size_t i = 0;
  while (i < s.size()) {
    uint64_t eight;
    if (i + sizeof(eight) <= s.size()) {  // eight ASCII bytes at a time
      std::memcpy(&eight, s.data() + i, sizeof(eight));
      if ((eight & 0x8080808080808080u) == 0) {
        i += sizeof(eight);
        continue;
      }
    }
    const Utf8Piece piece = NextUtf8(s.substr(i));
    if (piece.kind != Utf8Kind::kCharacter) return false;
    i += piece.size;
  }
  return true;
}

std::string ReplaceBrokenUtf8(std::string_view s) {
  std::string out;
  out.reserve(s.size());
  for (size_t i = 0; i < s.size();) {
    const Utf8Piece piece = NextUtf8(s.substr(i));
    out += piece.kind == Utf8Kind::kCharacter ? s.substr(i, piece.size) : kReplacementCharacter;
    i += piece.size;
  }
  return out;
}

}  // namespace cairn
