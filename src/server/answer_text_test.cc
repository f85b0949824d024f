#include "server/answer_text.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace cairn {
namespace {

using Begin = ReasoningSplitter::Begin;

// One token for each byte, spelt as GPT-2's vocabulary spells bytes, then whole words.
class Vocabulary {
 public:
  Vocabulary() {
    TokenizerSpec spec;
    spec.pre = "gpt-2";
    int next = 256;
    for (int byte = 0; byte < 256; ++byte) {
      const bool shown = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
      const int code = shown ? byte : next++;
      std::string spelt;
      if (code < 0x80) {
        spelt = static_cast<char>(code);
      } else {
        spelt = {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3F))};
      }
      spec.tokens.push_back(spelt);
    }
    spec.tokens.push_back("<think>");
    spec.tokens.push_back("</think>");
    spec.types.assign(spec.tokens.size(), TokenType::kNormal);
    spec.types[256] = spec.types[257] = TokenType::kUserDefined;
    tokenizer = std::make_unique<Tokenizer>(Tokenizer::Create(spec).value());
  }
  std::unique_ptr<Tokenizer> tokenizer;
};

std::vector<Token> Bytes(const std::string& text) {
  std::vector<Token> tokens;
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

struct Answer {
  std::string reasoning, content;
  size_t kept, reasoning_tokens;
  bool stopped;
};

Answer RunAnswer(Begin begin, const std::vector<Token>& tokens,
                 const std::vector<std::string>& stops) {
  const Vocabulary vocabulary;
  AnswerText text(vocabulary.tokenizer.get(), std::make_shared<const StopSet>(stops), begin);
  Answer a{};
  size_t released = 0, pushed = 0;
  auto take = [&](const AnswerText::Output& output) {
    a.reasoning += output.text.reasoning;
    a.content += output.text.content;
    a.stopped = output.stopped;
    EXPECT_GE(output.token_count, released);
    EXPECT_LE(output.token_count, pushed);
    released = output.token_count;
  };
  for (const Token token : tokens) {
    ++pushed;
    take(text.Push(token));
    if (a.stopped) break;
  }
  if (!a.stopped) take(text.Flush());
  a.kept = text.kept();
  a.reasoning_tokens = text.reasoning_tokens();
  EXPECT_EQ(released, a.kept);  // in the end every token of the answer was given out
  return a;
}

TEST(AnswerText, KeepsTheTokensBeforeAStopString) {
  const Answer a = RunAnswer(Begin::kPlain, Bytes("hello END world"), {"END", "never"});
  EXPECT_EQ(a.content, "hello ");
  EXPECT_TRUE(a.stopped);
  EXPECT_EQ(a.kept, 6u);
}

TEST(AnswerText, AStopStringThatOnlyBeganIsText) {
  const Answer a = RunAnswer(Begin::kPlain, Bytes("hello EN"), {"END"});
  EXPECT_EQ(a.content, "hello EN");
  EXPECT_FALSE(a.stopped);
  EXPECT_EQ(a.kept, 8u);
}

TEST(AnswerText, ACharacterCutByTheEndBecomesTheReplacementCharacter) {
  const Answer a = RunAnswer(Begin::kPlain, Bytes("a\xE2\x9B"), {});
  EXPECT_EQ(a.content, "a\xEF\xBF\xBD");
  EXPECT_EQ(a.kept, 3u);
}

TEST(AnswerText, CountsReasoningWithItsTags) {
  std::vector<Token> tokens = {256};
  for (const Token t : Bytes("\nab\n")) tokens.push_back(t);
  tokens.push_back(257);
  for (const Token t : Bytes("\n\nHi")) tokens.push_back(t);
  const Answer a = RunAnswer(Begin::kMayOpen, tokens, {});
  EXPECT_EQ(a.reasoning, "ab");
  EXPECT_EQ(a.content, "Hi");
  EXPECT_EQ(a.reasoning_tokens, 6u);
  EXPECT_EQ(a.kept, tokens.size());
}

TEST(AnswerText, AStopStringInsideTheReasoningEndsTheAnswer) {
  std::vector<Token> tokens = {256};
  for (const Token t : Bytes("one STOP")) tokens.push_back(t);
  const Answer a = RunAnswer(Begin::kMayOpen, tokens, {"STOP"});
  EXPECT_EQ(a.reasoning, "one ");
  EXPECT_EQ(a.content, "");
  EXPECT_EQ(a.kept, 5u);
  EXPECT_EQ(a.reasoning_tokens, 5u);
}

TEST(TextOffsets, CountTheCharactersOfTheTextBeforeAToken) {
  const Vocabulary vocabulary;
  auto offsets = [&](const std::string& bytes, int64_t begin) {
    TextOffsets all(vocabulary.tokenizer.get(), true, begin);
    std::vector<int64_t> list;
    for (const Token token : Bytes(bytes)) list.push_back(all.Push(token));
    return list;
  };
  using List = std::vector<int64_t>;
  EXPECT_EQ(offsets("ab", 5), (List{5, 6}));
  // Bytes after the first of a character begin after that character.
  EXPECT_EQ(offsets("\xE2\x9B\xB0x", 0), (List{0, 1, 1, 1}));
  // Each broken byte is a character of the text.
  EXPECT_EQ(offsets("\x9B\xB0x", 0), (List{0, 1, 2}));
  EXPECT_EQ(offsets("\xE2xy", 0), (List{0, 1, 2}));
}

TEST(TextOffsets, TokensInFrontOfThePromptsTextBeginWithIt) {
  const Vocabulary vocabulary;
  const std::vector<Token> tokens = Bytes("<s>ab");
  EXPECT_EQ(PromptOffsets(*vocabulary.tokenizer, tokens, "ab"),
            (std::vector<int64_t>{0, 0, 0, 0, 1}));
  EXPECT_EQ(PromptOffsets(*vocabulary.tokenizer, tokens, "<s>ab"),
            (std::vector<int64_t>{0, 1, 2, 3, 4}));
}

}  // namespace
}  // namespace cairn
