#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <ctime>
#include <thread>

#include "text/testing.h"

namespace cairn {
namespace {

using testing::LoadSpec;
using testing::ReadFileOrDie;
using testing::ReadRecords;
using testing::ReadSpec;
using testing::TestDataPath;

Tokenizer LoadJson(const std::string& name) {
  return Tokenizer::FromJson(ReadFileOrDie(TestDataPath(name + ".tokenizer.json"))).value();
}

void ExpectCases(const Tokenizer& tokenizer, const std::string& name) {
  const auto records = ReadRecords(name + ".cases");
  ASSERT_GT(records.size(), 20u);
  for (const auto& fields : records) {
    ASSERT_EQ(fields.size(), 4u);
    const std::string text = testing::Unescape(fields[1]);
    const std::vector<Token> want = testing::ParseIds(fields[2]);
    const auto got = tokenizer.Encode(text, {.parse_special = fields[0] == "1"});
    ASSERT_TRUE(got.ok()) << got.status().ToString();
    EXPECT_EQ(*got, want) << name << ": " << fields[1];
    EXPECT_EQ(tokenizer.Decode(want, false), testing::Unescape(fields[3]))
        << name << ": " << fields[1];
  }
}

// The expected ids and texts come from Hugging Face tokenizers with the family's tokenizer.json.
class Families : public ::testing::TestWithParam<const char*> {};

TEST_P(Families, GgufVocabularyEncodesAsTokenizerJsonDoes) {
  ExpectCases(LoadSpec(std::string(GetParam()) + ".spec"), GetParam());
}

TEST_P(Families, TokenizerJsonEncodesAsHuggingFaceDoes) {
  ExpectCases(LoadJson(GetParam()), GetParam());
}

INSTANTIATE_TEST_SUITE_P(All, Families,
                         ::testing::Values("golden", "trailguide", "qwen2", "qwen35", "llama-bpe",
                                           "smollm", "gpt-2"));

// Expected ids come from the sentencepiece library itself.
TEST(Tokenizer, SentencePieceVocabularyEncodesAsSentencePieceDoes) {
  ExpectCases(LoadSpec("spm.spec"), "spm");
}

TEST(Tokenizer, SentencePieceTokenizerJsonEncodesAsHuggingFaceDoes) {
  ExpectCases(LoadJson("spm-json"), "spm-json");
  ExpectCases(LoadJson("gemma-json"), "gemma-json");
}

TEST(Tokenizer, SentencePieceVocabularyMatchesSpecialTokensAsTokenizerJsonDoes) {
  ExpectCases(LoadSpec("spm.spec"), "spm-json");
}

TEST(Tokenizer, AddSpecialPutsBosBeforeTheText) {
  TokenizerSpec spec = ReadSpec("spm.spec");
  const Tokenizer with = Tokenizer::Create(spec).value();
  const std::vector<Token> bare = with.Encode("the cairn").value();
  std::vector<Token> want = {*spec.bos};
  want.insert(want.end(), bare.begin(), bare.end());
  EXPECT_EQ(with.Encode("the cairn", {.add_special = true}).value(), want);
  EXPECT_TRUE(with.adds_bos());
  spec.add_bos = false;
  spec.add_eos = true;
  want = bare;
  want.push_back(*spec.eos);
  EXPECT_EQ(Tokenizer::Create(spec).value().Encode("the cairn", {.add_special = true}).value(),
            want);
  EXPECT_FALSE(LoadSpec("trailguide.spec").adds_bos());
}

TEST(Tokenizer, TokenBytesJoinToTheText) {
  const Tokenizer tokenizer = LoadSpec("trailguide.spec");
  for (const auto& fields : ReadRecords("trailguide.cases")) {
    std::string joined;
    for (const Token token : testing::ParseIds(fields[2])) joined += tokenizer.TokenBytes(token);
    EXPECT_EQ(joined, testing::Unescape(fields[3]));
  }
  EXPECT_EQ(tokenizer.TokenBytes(-1), "");
  EXPECT_EQ(tokenizer.TokenBytes(tokenizer.vocab_size()), "");
}

TEST(Tokenizer, KnowsSpecialAndEndTokens) {
  const Tokenizer tokenizer = LoadSpec("trailguide.spec");
  const Token end = tokenizer.FindAdded("<|im_end|>").value();
  const Token think = tokenizer.FindAdded("<think>").value();
  const Token text_end = tokenizer.FindAdded("<|endoftext|>").value();
  EXPECT_EQ(tokenizer.eos(), end);
  EXPECT_EQ(tokenizer.eos_text(), "<|im_end|>");
  EXPECT_TRUE(tokenizer.IsSpecial(end));
  EXPECT_TRUE(tokenizer.IsAdded(think));
  EXPECT_FALSE(tokenizer.IsSpecial(think));
  EXPECT_FALSE(tokenizer.IsAdded(0));
  EXPECT_EQ(std::vector<Token>(tokenizer.end_of_generation().begin(),
                               tokenizer.end_of_generation().end()),
            (std::vector<Token>{text_end, end}));
  EXPECT_EQ(tokenizer.Decode(std::vector<Token>{end, think, end}, true), "<think>");
  EXPECT_EQ(tokenizer.FindAdded("cairn"), std::nullopt);
}

TEST(Tokenizer, ConfigNamesTheTokensOfATokenizerJson) {
  const std::string json = ReadFileOrDie(TestDataPath("golden.tokenizer.json"));
  const auto tokenizer = Tokenizer::FromJson(
      json, R"({"eos_token": "<|im_end|>", "bos_token": {"content": "<|endoftext|>"}})");
  ASSERT_TRUE(tokenizer.ok());
  EXPECT_EQ(tokenizer->eos_text(), "<|im_end|>");
  EXPECT_EQ(tokenizer->bos_text(), "<|endoftext|>");
  EXPECT_FALSE(tokenizer->adds_bos());
}

TEST(Tokenizer, RefusesWhatIsNotUtf8) {
  const Tokenizer tokenizer = LoadSpec("golden.spec");
  for (const char* text : {"\xff", "a\xc3", "\xed\xa0\x80", "\xc0\x80", "\xf4\x90\x80\x80"}) {
    EXPECT_EQ(tokenizer.Encode(text).status().code(), StatusCode::kInvalidArgument);
  }
}

TEST(Tokenizer, RefusesBrokenVocabularies) {
  const TokenizerSpec good = ReadSpec("golden.spec");
  const auto code = [](const TokenizerSpec& spec) {
    return Tokenizer::Create(spec).status().code();
  };
  TokenizerSpec spec = good;
  spec.pre = "nobody-knows";
  EXPECT_EQ(code(spec), StatusCode::kUnsupported);
  spec = good;
  spec.merges.push_back("no-such token");
  EXPECT_NE(code(spec), StatusCode::kOk);
  spec = good;
  spec.merges.push_back("nospace");
  EXPECT_NE(code(spec), StatusCode::kOk);
  spec = good;
  spec.types.pop_back();
  EXPECT_EQ(code(spec), StatusCode::kDataLoss);
  spec = good;
  spec.eos = static_cast<Token>(spec.tokens.size());
  EXPECT_EQ(code(spec), StatusCode::kDataLoss);
  spec = good;
  spec.tokens.clear();
  spec.types.clear();
  spec.eos.reset();
  EXPECT_NE(code(spec), StatusCode::kOk);
  spec = good;
  spec.tokens[5] = "\xff";
  EXPECT_NE(code(spec), StatusCode::kOk);
  for (const char* json : {"", "{", "[]", "{\"model\":{}}", "\xff",
                           R"({"model":{"type":"WordLevel","vocab":{"a":0},"unk_token":"a"}})"}) {
    EXPECT_FALSE(Tokenizer::FromJson(json).ok()) << json;
  }
}

double ThreadSeconds() {  // of processor time, so that a busy machine does not count
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Words, runs and near-specials of a million bytes: no error, nothing lost, time near linear (the
// limit is many times what it takes, for a slow or shared machine).
TEST(Tokenizer, HostileTextsEncodeInBoundedTime) {
  const Tokenizer tokenizer = LoadSpec("trailguide.spec");
  const auto repeat = [](std::string_view piece, size_t bytes) {
    std::string s;
    while (s.size() < bytes) s += piece;
    return s;
  };
  constexpr size_t kMillion = 1000000;
  std::string word;
  for (uint32_t i = 0, x = 1; i < 6000; ++i) {
    x = x * 1664525 + 1013904223;
    word += static_cast<char>('a' + (x >> 24) % 26);
  }
  for (const std::string& text :
       {word, repeat(" ", kMillion), repeat("\n", kMillion), repeat(" ", kMillion) + "x",
        repeat(" \n", kMillion), repeat("a", kMillion), repeat("!", kMillion),
        repeat("7", kMillion), repeat("\xCC\x81", kMillion), repeat("<|im_star", kMillion),
        repeat("'\xC5\xBF", kMillion)}) {
    const double start = ThreadSeconds();
    const auto ids = tokenizer.Encode(text);
    const double taken = ThreadSeconds() - start;
    ASSERT_TRUE(ids.ok());
    EXPECT_EQ(tokenizer.Decode(*ids, false), text);
    EXPECT_LT(taken, 10.0);
  }
}

TEST(Tokenizer, ManyThreadsEncodeTheSame) {
  const Tokenizer tokenizer = LoadSpec("trailguide.spec");
  const auto records = ReadRecords("trailguide.cases");
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (const auto& fields : records) {
        const auto ids =
            tokenizer.Encode(testing::Unescape(fields[1]), {.parse_special = fields[0] == "1"});
        if (!ids.ok() || *ids != testing::ParseIds(fields[2])) ++wrong[t];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4));
}

}  // namespace
}  // namespace cairn
