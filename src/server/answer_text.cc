#include "server/answer_text.h"

#include <algorithm>
#include <utility>

#include "text/utf8.h"

namespace cairn {

AnswerText::AnswerText(const Tokenizer* tokenizer, std::shared_ptr<const StopSet> stops,
                       ReasoningSplitter::Begin begin)
    : detokenizer_(tokenizer), matcher_(std::move(stops)), splitter_(begin) {}

AnswerText::Output AnswerText::Push(Token token) {
  const std::string text = detokenizer_.Push(token);
  const bool inside_character = detokenizer_.has_pending();
  text_bytes_ += text.size();
  // A token that ends inside a character ends with that character's first byte, which comes with a
  // later token.
  ends_.push_back(text_bytes_ + (inside_character ? 1 : 0));
  return Take(matcher_.Push(text, inside_character), false);
}

AnswerText::Output AnswerText::Flush() {
  const std::string tail = detokenizer_.Flush();
  text_bytes_ += tail.size();
  return Take(matcher_.Flush(tail), true);
}

AnswerText::Output AnswerText::Take(const StopMatcher::Output& matched, bool is_end) {
  Output output;
  output.stopped = matched.stop_index.has_value();
  output.text = splitter_.Push(matched.text);
  if (is_end || output.stopped) {
    ReasoningSplitter::Output rest = splitter_.Flush();
    output.text.reasoning += rest.reasoning;
    output.text.content += rest.content;
  }
  kept_ = output.stopped ? matched.token_count : ends_.size();
  const uint64_t settled = splitter_.settled_bytes();
  while (counted_ < matched.token_count && ends_[counted_] <= settled) ++counted_;
  if (output.stopped || is_end) counted_ = matched.token_count;
  output.token_count = counted_;
  return output;
}

size_t AnswerText::reasoning_tokens() const {
  const auto end = splitter_.reasoning_end();
  if (!end) return 0;
  const auto first_after = std::upper_bound(ends_.begin(), ends_.end(), *end);
  return std::min(static_cast<size_t>(first_after - ends_.begin()), kept_);
}

int64_t CountCharacters(std::string_view text) {
  int64_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return count;
}

int64_t TextOffsets::Push(Token token) {
  // A character whose first bytes are there already is counted.
  const int64_t begin = characters_ + (detokenizer_.has_pending() ? 1 : 0);
  characters_ += CountCharacters(detokenizer_.Push(token));
  return begin;
}

std::vector<int64_t> PromptOffsets(const Tokenizer& tokenizer, std::span<const Token> tokens,
                                   std::string_view text) {
  std::string bytes;
  for (const Token token : tokens) bytes += tokenizer.TokenBytes(token);
  const int64_t end = CountCharacters(text);
  TextOffsets all(&tokenizer, false, end - CountCharacters(ReplaceBrokenUtf8(bytes)));
  std::vector<int64_t> offsets;
  offsets.reserve(tokens.size());
  for (const Token token : tokens) offsets.push_back(std::clamp<int64_t>(all.Push(token), 0, end));
  return offsets;
}

}  // namespace cairn
