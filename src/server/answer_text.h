// Tokens of an answer -> text for the client, with the count of tokens whose text it has:
// Detokenize -> Stop? -> Reasoning?. Pure; knows neither HTTP nor JSON.
// Threads: one owner; no locks.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/reasoning_splitter.h"
#include "text/detokenizer.h"
#include "text/stop_matcher.h"

namespace cairn {

class AnswerText {
 public:
  struct Output {
    ReasoningSplitter::Output text;
    // Of all tokens so far, those whose text was given out whole (or belongs to a tag).
    size_t token_count = 0;
    bool stopped = false;  // a stop string was met: nothing follows
  };

  // tokenizer must outlive this.
  AnswerText(const Tokenizer* tokenizer, std::shared_ptr<const StopSet> stops,
             ReasoningSplitter::Begin begin);

  Output Push(Token token);
  Output Flush();  // the end without a stop string

  // Tokens that belong to the answer: all, or those before the stop string.
  size_t kept() const { return kept_; }
  // Of the kept ones, those of the reasoning, its tags included.
  size_t reasoning_tokens() const;

 private:
  Output Take(const StopMatcher::Output& matched, bool is_end);

  Detokenizer detokenizer_;
  StopMatcher matcher_;
  ReasoningSplitter splitter_;
  uint64_t text_bytes_ = 0;     // of the detokenizer
  std::vector<uint64_t> ends_;  // by token: where its text ends, in those bytes
  size_t counted_ = 0, kept_ = 0;
};

int64_t CountCharacters(std::string_view text);

// Where the text of each token begins, in characters of the whole text.
class TextOffsets {
 public:
  // `begin`: characters before the first token. tokenizer must outlive this.
  TextOffsets(const Tokenizer* tokenizer, bool skip_special, int64_t begin)
      : detokenizer_(tokenizer, skip_special), characters_(begin) {}

  int64_t Push(Token token);

 private:
  Detokenizer detokenizer_;
  int64_t characters_;
};

// The same for the tokens of a prompt whose text the client knows. Tokens in front of that text
// (BOS) begin with it.
std::vector<int64_t> PromptOffsets(const Tokenizer& tokenizer, std::span<const Token> tokens,
                                   std::string_view text);

}  // namespace cairn
