#include "text/detokenizer.h"

#include <utility>

#include "text/utf8.h"

namespace cairn {

std::string Utf8Stream::Push(std::string_view bytes) {
  std::string joined;
  if (!pending_.empty()) {
    joined = std::exchange(pending_, {});
    joined += bytes;
    bytes = joined;
  }
  std::string out;
  out.reserve(bytes.size());
  while (!bytes.empty()) {
    const Utf8Piece piece = NextUtf8(bytes);
    if (piece.kind == Utf8Kind::kIncomplete) {  // reaches to the end of the input
      pending_ = bytes;
      break;
    }
    out += piece.kind == Utf8Kind::kCharacter ? bytes.substr(0, piece.size) : kReplacementCharacter;
    bytes.remove_prefix(piece.size);
  }
  return out;
}

std::string Utf8Stream::Flush() { return ReplaceBrokenUtf8(std::exchange(pending_, {})); }

std::string Detokenizer::Push(Token token) {
  if (skip_special_ && tokenizer_->IsSpecial(token)) return {};
  return stream_.Push(tokenizer_->TokenBytes(token));
}

}  // namespace cairn
