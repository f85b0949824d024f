#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <thread>

#include "text/testing.h"
#include "text/utf8.h"

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

}  // namespace
}  // namespace cairn
