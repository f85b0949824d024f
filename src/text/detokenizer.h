// Streaming UTF-8: bytes of tokens in, whole characters out. For every way to cut the bytes, the
// pieces joined equal ReplaceBrokenUtf8 of all bytes.
// Threads: one owner; no locks.
#pragma once

#include <string>
#include <string_view>

#include "base/token.h"
#include "text/tokenizer.h"

namespace cairn {

// Holds back an incomplete character at the end until it is completed, broken, or flushed.
class Utf8Stream {
 public:
  std::string Push(std::string_view bytes);
  // What is still held back, as U+FFFD; the stream is as new afterwards.
  std::string Flush();
  bool has_pending() const { return !pending_.empty(); }

 private:
  std::string pending_;  // the beginning of one character, at most 3 bytes
};

class Detokenizer {
 public:
  // tokenizer must outlive this. Control tokens give no text if skip_special.
  explicit Detokenizer(const Tokenizer* tokenizer, bool skip_special = true)
      : tokenizer_(tokenizer), skip_special_(skip_special) {}

  std::string Push(Token token);
  std::string Flush() { return stream_.Flush(); }
  // Whether bytes of the last token wait for the rest of their character.
  bool has_pending() const { return stream_.has_pending(); }

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  Utf8Stream stream_;
};

}  // namespace cairn
