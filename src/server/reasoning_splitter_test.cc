#include "server/reasoning_splitter.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace cairn {
namespace {

using Begin = ReasoningSplitter::Begin;

struct Split {
  std::string reasoning, content;
  std::optional<uint64_t> end;
};

// The text in pieces of `size` bytes.
Split SplitInPieces(Begin begin, const std::string& text, size_t size) {
  ReasoningSplitter splitter(begin);
  Split split;
  for (size_t at = 0; at < text.size(); at += size) {
    const auto output = splitter.Push(text.substr(at, size));
    split.reasoning += output.reasoning;
    split.content += output.content;
    EXPECT_LE(splitter.settled_bytes(), at + size);
  }
  const auto rest = splitter.Flush();
  split.reasoning += rest.reasoning;
  split.content += rest.content;
  split.end = splitter.reasoning_end();
  EXPECT_EQ(splitter.settled_bytes(), text.size());
  return split;
}

struct Case {
  const char* name;
  Begin begin;
  std::string text, reasoning, content;
};

TEST(ReasoningSplitter, TheSameForEveryWayToCutTheText) {
  const std::vector<Case> cases = {
      {"no tags in the model", Begin::kPlain, "<think>a</think>b", "", "<think>a</think>b"},
      {"no reasoning", Begin::kMayOpen, "Hello", "", "Hello"},
      {"white space first", Begin::kMayOpen, " \n Hello", "", " \n Hello"},
      {"only white space", Begin::kMayOpen, "\n\n", "", "\n\n"},
      {"nothing", Begin::kMayOpen, "", "", ""},
      {"reasoning and answer", Begin::kMayOpen, "<think>\nab\n\ncd\n</think>\n\nHi\n", "ab\n\ncd",
       "Hi\n"},
      {"white space before the tag", Begin::kMayOpen, "\n <think>a</think>b", "a", "b"},
      {"empty reasoning", Begin::kMayOpen, "<think>\n\n</think>\n\nHi", "", "Hi"},
      {"opened by the prompt", Begin::kOpen, "\nab\n</think>\n\nHi", "ab", "Hi"},
      {"never closed", Begin::kOpen, "ab\ncd", "ab\ncd", ""},
      {"cut inside the closing tag", Begin::kOpen, "ab\n</thi", "ab\n</thi", ""},
      {"cut inside the opening tag", Begin::kMayOpen, "<thin", "", "<thin"},
      {"almost the opening tag", Begin::kMayOpen, "<thing>", "", "<thing>"},
      {"almost the closing tag", Begin::kOpen, "a</thin></think>b", "a</thin>", "b"},
      {"tags later are text", Begin::kMayOpen, "a<think>b</think>", "", "a<think>b</think>"},
      {"a second pair is text", Begin::kMayOpen, "<think>a</think>b<think>c</think>", "a",
       "b<think>c</think>"},
      {"a doubled opening tag", Begin::kOpen, "<think>a</think>b", "<think>a", "b"},
  };
  for (const Case& c : cases) {
    for (size_t size = 1; size <= c.text.size() + 1; ++size) {
      const Split split = SplitInPieces(c.begin, c.text, size);
      EXPECT_EQ(split.reasoning, c.reasoning) << c.name << ", pieces of " << size;
      EXPECT_EQ(split.content, c.content) << c.name << ", pieces of " << size;
    }
  }
}

TEST(ReasoningSplitter, SaysWhereTheReasoningEnds) {
  EXPECT_EQ(SplitInPieces(Begin::kMayOpen, "<think>ab</think>\nHi", 3).end, 17u);
  EXPECT_EQ(SplitInPieces(Begin::kOpen, "ab", 1).end, 2u);
  EXPECT_EQ(SplitInPieces(Begin::kMayOpen, "ab", 1).end, std::nullopt);
}

TEST(ReasoningSplitter, GivesOutWhatIsCertain) {
  ReasoningSplitter splitter(Begin::kMayOpen);
  EXPECT_TRUE(splitter.Push("<think>").empty());
  EXPECT_EQ(splitter.Push("one").reasoning, "one");
  EXPECT_TRUE(splitter.Push("\n").empty());
  EXPECT_EQ(splitter.Push("two<").reasoning, "\ntwo");
  EXPECT_TRUE(splitter.Push("/think>").empty());
  EXPECT_EQ(splitter.Push("\nthree").content, "three");
}

}  // namespace
}  // namespace cairn
