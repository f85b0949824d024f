#include "text/stop_matcher.h"

#include <gtest/gtest.h>

#include <random>

namespace cairn {
namespace {

struct Outcome {
  std::string text;
  size_t kept = 0;
  std::optional<size_t> stop;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

// The specification: the match that ends first, of those the longest; tokens that lie before it.
Outcome Expected(const std::vector<std::string>& stops, const std::vector<std::string>& tokens) {
  std::string all;
  for (const std::string& token : tokens) all += token;
  std::optional<size_t> begin, stop;
  for (size_t end = 1; end <= all.size() && !begin; ++end) {
    for (size_t i = 0; i < stops.size(); ++i) {
      const std::string& s = stops[i];
      if (s.empty() || s.size() > end || all.compare(end - s.size(), s.size(), s) != 0) continue;
      if (!begin || end - s.size() < *begin) {
        begin = end - s.size();
        stop = i;
      }
    }
  }
  Outcome want{all.substr(0, begin.value_or(all.size())), 0, stop};
  size_t token_end = 0;
  for (const std::string& token : tokens) {
    token_end += token.size();
    if (token_end > want.text.size()) break;
    ++want.kept;
  }
  return want;
}

Outcome RunMatcher(const std::vector<std::string>& stops, const std::vector<std::string>& tokens) {
  StopMatcher matcher(std::make_shared<const StopSet>(stops));
  Outcome got;
  std::string all;
  for (const std::string& token : tokens) {
    all += token;
    const StopMatcher::Output out = matcher.Push(token);
    got.text += out.text;
    got.kept = out.token_count;
    got.stop = out.stop_index;
    if (got.stop) return got;
    // Held back: exactly the longest end of the text that begins a stop string.
    size_t held = 0;
    for (const std::string& s : stops) {
      for (size_t n = 1; n < s.size() && n <= all.size(); ++n) {
        if (all.compare(all.size() - n, n, s, 0, n) == 0) held = std::max(held, n);
      }
    }
    EXPECT_EQ(got.text.size() + held, all.size());
  }
  const StopMatcher::Output out = matcher.Flush();
  got.text += out.text;
  got.kept = out.token_count;
  got.stop = out.stop_index;
  return got;
}

TEST(StopMatcher, MatchesOverTokenBorders) {
  EXPECT_EQ(RunMatcher({"STOP"}, {"ab", "cS", "TO", "P", "x"}), (Outcome{"abc", 1, 0}));
  EXPECT_EQ(RunMatcher({"STOP"}, {"abc", "STOP"}), (Outcome{"abc", 1, 0}));
  EXPECT_EQ(RunMatcher({"STOP"}, {"aSTOPb"}), (Outcome{"a", 0, 0}));
}

TEST(StopMatcher, ReleasesWhatOnlyBeganAStopString) {
  EXPECT_EQ(RunMatcher({"STOP"}, {"aSTO", "b"}), (Outcome{"aSTOb", 2, std::nullopt}));
  EXPECT_EQ(RunMatcher({"STOP"}, {"aSTO"}), (Outcome{"aSTO", 1, std::nullopt}));
  EXPECT_EQ(RunMatcher({"aab"}, {"a", "a", "a", "b"}), (Outcome{"a", 1, 0}));
}

TEST(StopMatcher, FirstEndWinsThenTheLongest) {
  EXPECT_EQ(RunMatcher({"bc", "abc"}, {"xabc"}), (Outcome{"x", 0, 1}));
  EXPECT_EQ(RunMatcher({"abcd", "bc"}, {"xabcd"}), (Outcome{"xa", 0, 1}));
  EXPECT_EQ(RunMatcher({"abcd", "bc"}, {"x", "a", "b", "c", "d"}), (Outcome{"xa", 2, 1}));
}

TEST(StopMatcher, NoStopStringsHoldNothingBack) {
  EXPECT_EQ(RunMatcher({}, {"a", "", "b"}), (Outcome{"ab", 3, std::nullopt}));
  EXPECT_EQ(RunMatcher({""}, {"a"}), (Outcome{"a", 1, std::nullopt}));
}

TEST(StopMatcher, TokenThatEndsInsideTheStopStringsFirstCharacterIsNotKept) {
  const std::vector<std::string> stops = {"\xC3\xA9"};
  StopMatcher matcher(std::make_shared<const StopSet>(stops));
  EXPECT_EQ(matcher.Push("a").token_count, 1u);
  EXPECT_EQ(matcher.Push("", true).token_count, 1u);  // the first byte of the character
  const StopMatcher::Output out = matcher.Push("\xC3\xA9");
  EXPECT_EQ(out.text, "");
  EXPECT_EQ(out.token_count, 1u);
  EXPECT_EQ(out.stop_index, 0u);
}

TEST(StopMatcher, FlushedTailMayCompleteAStopString) {
  const std::vector<std::string> stops = {"a\uFFFD"};
  StopMatcher matcher(std::make_shared<const StopSet>(stops));
  EXPECT_EQ(matcher.Push("xa").text, "x");
  EXPECT_EQ(matcher.Push("", true).text, "");
  const StopMatcher::Output out = matcher.Flush("\uFFFD");
  EXPECT_EQ(out.text, "");
  EXPECT_EQ(out.token_count, 0u);
  EXPECT_TRUE(out.stop_index.has_value());
}

TEST(StopMatcher, RandomTextsFollowTheSpecificationForEverySplit) {
  std::mt19937 rng(5);
  const auto random_text = [&](size_t size_max) {
    std::string s;
    for (size_t n = 1 + rng() % size_max; n > 0; --n) s += static_cast<char>('a' + rng() % 3);
    return s;
  };
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::string> stops(rng() % 5), tokens(rng() % 12);
    for (std::string& stop : stops) stop = random_text(5);
    for (std::string& token : tokens) token = random_text(4);
    Outcome want = Expected(stops, tokens);
    if (want.stop) {  // equal strings: either index will do
      for (size_t i = 0; i < *want.stop; ++i) {
        if (stops[i] == stops[*want.stop]) want.stop = i;
      }
    }
    EXPECT_EQ(RunMatcher(stops, tokens), want);
  }
}

TEST(StopMatcher, ManyLongStopStringsStayFast) {
  std::vector<std::string> stops;
  for (int i = 0; i < 2000; ++i) stops.push_back(std::string(100, 'a') + std::to_string(i));
  StopMatcher matcher(std::make_shared<const StopSet>(stops));
  size_t given = 0;
  for (int i = 0; i < 20000; ++i) given += matcher.Push("aaaaaaaaaa").text.size();
  EXPECT_EQ(given, 200000u - 100u);
  EXPECT_EQ(matcher.Push("1999").stop_index, 1u);  // "...1" ends first
}

}  // namespace
}  // namespace cairn
