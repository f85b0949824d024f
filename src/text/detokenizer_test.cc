#include "text/detokenizer.h"

#include <gtest/gtest.h>

#include <random>

#include "text/testing.h"
#include "text/utf8.h"

namespace cairn {
namespace {

// Expected: Python's bytes.decode("utf-8", errors="replace").
TEST(Utf8, BrokenBytesAreReplacedAsPythonDoes) {
  const struct {
    std::string bytes, want;
  } cases[] = {
      {"abc", "abc"},
      {"\xC3\xA9", "\xC3\xA9"},
      {"\xC3", "\uFFFD"},
      {"\xC3(", "\uFFFD("},
      {"\xE2\x82", "\uFFFD"},
      {"\xE2\x82x", "\uFFFDx"},
      {"\xE2\x82\xC3\xA9", "\uFFFD\xC3\xA9"},
      {"\xF0\x9F\x91", "\uFFFD"},
      {"\xF0\x9F\x91\xF0\x9F\x91\xA9", "\uFFFD\xF0\x9F\x91\xA9"},
      {"\x80\x80", "\uFFFD\uFFFD"},
      {"\xC0\x80", "\uFFFD\uFFFD"},
      {"\xE0\x80\x80", "\uFFFD\uFFFD\uFFFD"},
      {"\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD"},
      {"\xF4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
      {"\xF8\x88", "\uFFFD\uFFFD"},
      {"a\xFF"
       "b",
       "a\uFFFD"
       "b"},
  };
  for (const auto& c : cases) EXPECT_EQ(ReplaceBrokenUtf8(c.bytes), c.want);
  EXPECT_TRUE(IsValidUtf8("plain ASCII text, then \xF0\x9F\x91\xA9 and more plain text"));
  EXPECT_FALSE(IsValidUtf8("plain ASCII text, then \xF0\x9F\x91"));
}

std::string RandomBytes(std::mt19937* rng) {
  static constexpr std::string_view kPieces[] = {
      "a",    " ",        "\n",           "\xC3\xA9", "\xE6\x97\xA5", "\xF0\x9F\x91\xA9",
      "\xC3", "\xE6\x97", "\xF0\x9F\x91", "\x80",     "\xFF",         "\xED\xA0",
      "\xE0", "\xF4\x90", "\xEF\xBF\xBD"};
  std::string bytes;
  const size_t count = (*rng)() % 12;
  for (size_t i = 0; i < count; ++i) bytes += kPieces[(*rng)() % std::size(kPieces)];
  return bytes;
}

TEST(Utf8Stream, EverySplitGivesTheSameText) {
  std::mt19937 rng(3);
  for (int round = 0; round < 3000; ++round) {
    const std::string bytes = RandomBytes(&rng);
    const std::string want = ReplaceBrokenUtf8(bytes);
    Utf8Stream stream;
    std::string got;
    for (size_t at = 0; at < bytes.size();) {
      const size_t size = 1 + rng() % 4;
      const std::string piece = stream.Push(std::string_view(bytes).substr(at, size));
      EXPECT_TRUE(IsValidUtf8(piece));
      got += piece;
      at += size;
    }
    // Nothing is held back that is not the beginning of a character.
    EXPECT_LE(want.size() - got.size(), stream.has_pending() ? 3u : 0u);
    got += stream.Flush();
    EXPECT_EQ(got, want);
    EXPECT_FALSE(stream.has_pending());
  }
}

TEST(Utf8Stream, BrokenByteIsReplacedAsSoonAsItCannotBeCompleted) {
  Utf8Stream stream;
  EXPECT_EQ(stream.Push("\xE6\x97"), "");
  EXPECT_EQ(stream.Push("x"), "\uFFFDx");
  EXPECT_EQ(stream.Push("\xE6"), "");
  EXPECT_EQ(stream.Push("\x97"), "");
  EXPECT_EQ(stream.Push("\xA5"), "\xE6\x97\xA5");
}

TEST(Detokenizer, StreamOfTokensEqualsAllBytesAtOnce) {
  for (const char* name : {"trailguide", "golden", "spm-json"}) {
    const Tokenizer tokenizer =
        Tokenizer::FromJson(
            testing::ReadFileOrDie(testing::TestDataPath(std::string(name) + ".tokenizer.json")))
            .value();
    std::mt19937 rng(11);
    for (int round = 0; round < 300; ++round) {
      std::vector<Token> tokens(1 + rng() % 40);
      for (Token& token : tokens) token = static_cast<Token>(rng() % tokenizer.vocab_size());
      for (const bool skip_special : {true, false}) {
        Detokenizer detokenizer(&tokenizer, skip_special);
        std::string got;
        for (const Token token : tokens) got += detokenizer.Push(token);
        got += detokenizer.Flush();
        // Not Decode, which drops the first space of a whole text: a stream continues a prompt.
        std::string bytes;
        for (const Token token : tokens) {
          if (!skip_special || !tokenizer.IsSpecial(token)) bytes += tokenizer.TokenBytes(token);
        }
        EXPECT_EQ(got, ReplaceBrokenUtf8(bytes));
      }
    }
  }
}

TEST(Detokenizer, SpecialTokensGiveNoTextAndDoNotBreakCharacters) {
  const Tokenizer tokenizer = testing::LoadSpec("golden.spec");
  const std::vector<Token> bytes = tokenizer.Encode("\xC3\xA9").value();
  ASSERT_EQ(bytes.size(), 2u);
  Detokenizer detokenizer(&tokenizer);
  EXPECT_EQ(detokenizer.Push(bytes[0]), "");
  EXPECT_TRUE(detokenizer.has_pending());
  EXPECT_EQ(detokenizer.Push(*tokenizer.eos()), "");
  EXPECT_EQ(detokenizer.Push(bytes[1]), "\xC3\xA9");
}

}  // namespace
}  // namespace cairn
