// Each family's pre-tokenizer on one small vocabulary whose merges cross every border that a
// pre-tokenizer may draw. The expected ids are those of Hugging Face's tokenizers with the
// families' published pre-tokenizers (tools/make_tokenizer_cases.py).

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "text/testing.h"
#include "text/tokenizer.h"

namespace cairn {
namespace {

using testing::ReadFileOrDie;
using testing::ReadRecords;
using testing::ReadSpec;
using testing::TestDataPath;
using testing::Unescape;

struct Case {
  std::string text;
  std::vector<Token> ids;
  std::string decoded;
};

std::map<std::string, std::vector<Case>> ReadCases() {
  std::map<std::string, std::vector<Case>> cases;
  for (const auto& fields : ReadRecords("families.cases")) {
    CHECK(fields.size() == 4);
    cases[fields[0]].push_back(
        {Unescape(fields[1]), testing::ParseIds(fields[2]), Unescape(fields[3])});
  }
  return cases;
}

void ExpectCases(const Tokenizer& tokenizer, const std::string& name,
                 const std::vector<Case>& cases) {
  EXPECT_GE(cases.size(), 30u);
  for (const Case& c : cases) {
    EXPECT_EQ(tokenizer.Encode(c.text).value(), c.ids) << name << ": " << c.text;
    EXPECT_EQ(tokenizer.Decode(c.ids, false), c.decoded) << name << ": " << c.text;
  }
}

TEST(TokenizerFamilies, GgufNamesCutTextAsTokenizerJsonDoes) {
  const auto cases = ReadCases();
  EXPECT_GE(cases.size(), 16u);
  for (const auto& [name, list] : cases) {
    TokenizerSpec spec = ReadSpec("families.spec");
    spec.pre = name.substr(0, name.find(' '));
    // Kimi's files may leave the merges out: the order of the vocabulary says them.
    if (name == "kimi-k2 ranks") spec.merges.clear();
    ExpectCases(Tokenizer::Create(spec).value(), name, list);
  }
}

std::string Replaced(std::string text, const std::string& what, const std::string& with) {
  const size_t at = text.find(what);
  CHECK(at != std::string::npos);
  return text.replace(at, what.size(), with);
}

TEST(TokenizerFamilies, TokenizerJsonCutsTextAsHuggingFaceDoes) {
  const auto cases = ReadCases();
  const std::string frame = ReadFileOrDie(TestDataPath("families.tokenizer.json"));
  for (const auto& fields : ReadRecords("families.pre")) {
    std::string json = Replaced(frame, "\"@normalizer@\"", Unescape(fields[1]));
    json = Replaced(json, "\"@pre_tokenizer@\"", Unescape(fields[2]));
    json = Replaced(json, "\"@ignore_merges@\"", fields[3]);
    ExpectCases(Tokenizer::FromJson(json).value(), fields[0], cases.at(fields[0]));
  }
}

std::string Base64(std::string_view bytes) {
  static constexpr char kDigits[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t k = 0; k < 3; ++k) {
      bits = bits << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0);
    }
    for (size_t k = 0; k < 4; ++k) {
      out += i + k <= bytes.size() ? kDigits[bits >> (18 - 6 * k) & 63] : '=';
    }
  }
  return out;
}

// Kimi's directories: ranks in tiktoken.model, the added tokens in tokenizer_config.json.
TEST(TokenizerFamilies, RanksOfATiktokenModelAreAVocabulary) {
  const TokenizerSpec spec = ReadSpec("families.spec");
  const Tokenizer whole = Tokenizer::Create(spec).value();
  std::string ranks, added;
  for (size_t id = 0; id < spec.tokens.size(); ++id) {
    const std::string number = std::to_string(id);
    if (spec.types[id] == TokenType::kNormal) {
      ranks += Base64(whole.TokenBytes(static_cast<Token>(id))) + " " + number + "\n";
    } else {
      added += (added.empty() ? "\"" : ",\"") + number + R"(":{"content":")" + spec.tokens[id] +
               R"(","special":)" + (spec.types[id] == TokenType::kControl ? "true}" : "false}");
    }
  }
  const std::string config = R"({"tokenizer_class":"TikTokenTokenizer","eos_token":"<|im_end|>",)"
                             R"("added_tokens_decoder":{)" +
                             added + "}}";
  const Tokenizer tokenizer = Tokenizer::FromRanks(ranks, config).value();
  ExpectCases(tokenizer, "tiktoken.model", ReadCases().at("kimi-k2 ranks"));
  EXPECT_EQ(tokenizer.eos_text(), "<|im_end|>");
  EXPECT_EQ(tokenizer.vocab_size(), 800 + 256);
  EXPECT_EQ(tokenizer.TokenBytes(1055), "<|reserved_token_1055|>");
  EXPECT_FALSE(tokenizer.IsSpecial(tokenizer.FindAdded("<think>").value()));

  EXPECT_EQ(Tokenizer::FromRanks(ranks, R"({"tokenizer_class":"Other"})").status().code(),
            StatusCode::kUnsupported);
  for (const char* broken : {"", "IQ== 1\n", "IQ==\n", "I?== 0\n", " 0\n", "IQ== 0\nIg== 2\n"}) {
    EXPECT_FALSE(Tokenizer::FromRanks(broken, R"({"tokenizer_class":"TikTokenTokenizer"})").ok() &&
                 *broken != '\0')
        << broken;
  }
}

// A split that removes what its pattern does not match: GPT-4o's tokenizer.json is laid out so.
TEST(TokenizerFamilies, ASplitMayLeaveOutWhatItDoesNotMatch) {
  const std::string frame = ReadFileOrDie(TestDataPath("families.tokenizer.json"));
  std::string json = Replaced(frame, "\"@normalizer@\"", "null");
  json = Replaced(json, "\"@pre_tokenizer@\"",
                  R"({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":)"
                  R"("[a-z]+"},"behavior":"Removed","invert":true},{"type":"ByteLevel",)"
                  R"("add_prefix_space":false,"trim_offsets":true,"use_regex":false}]})");
  json = Replaced(json, "\"@ignore_merges@\"", "false");
  const Tokenizer tokenizer = Tokenizer::FromJson(json).value();
  EXPECT_EQ(tokenizer.Decode(tokenizer.Encode("ab 12cd!E f").value(), false), "abcdf");
}

TEST(TokenizerFamilies, WhatADecoderWouldDoToTextIsKnownOrRefused) {
  std::string json = ReadFileOrDie(TestDataPath("llama-bpe.tokenizer.json"));
  const size_t begin = json.find("{\"type\":\"ByteLevel\"", json.find("\"decoder\":"));
  json.replace(begin, json.find('}', begin) + 1 - begin,
               R"({"type":"WordPiece","prefix":"##",)"
               R"("cleanup":true})");
  const Status status = Tokenizer::FromJson(json).status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("decoder WordPiece"), std::string::npos) << status.message();
}

// The names that mean one of the others.
TEST(TokenizerFamilies, OtherNamesAreKnown) {
  const std::pair<const char*, const char*> same[] = {
      {"llama4", "gpt-4o"}, {"olmo", "mpt"},         {"granite-docling", "gpt-2"},
      {"refact", "smollm"}, {"starcoder", "smollm"}, {"codeshell", "smollm"},
  };
  const auto cases = ReadCases();
  for (const auto& [name, family] : same) {
    TokenizerSpec spec = ReadSpec("families.spec");
    spec.pre = name;
    ExpectCases(Tokenizer::Create(spec).value(), name, cases.at(family));
  }
}

// DeepSeek spells control tokens with SentencePiece's space mark, in a byte-level vocabulary.
TEST(TokenizerFamilies, AddedTokensMayHoldTheSpaceMark) {
  TokenizerSpec spec = ReadSpec("families.spec");
  const Token added = static_cast<Token>(spec.tokens.size());
  spec.tokens.push_back("<\uFF5Cfim\u2581end\uFF5C>");
  spec.types.push_back(TokenType::kUserDefined);
  const Tokenizer tokenizer = Tokenizer::Create(spec).value();
  EXPECT_EQ(tokenizer.Encode("<\uFF5Cfim\u2581end\uFF5C>").value(), std::vector<Token>{added});
}

// Gemma's runs of spaces: GGUF files spell them with spaces, tokenizer.json with the mark.
TEST(TokenizerFamilies, RunsOfSpacesAreTheSameTokensHoweverSpelt) {
  TokenizerSpec with_spaces = ReadSpec("spm.spec"), with_marks = with_spaces;
  const Token run = static_cast<Token>(with_spaces.tokens.size());
  for (const auto& [spec, text, score] :
       {std::tuple(&with_spaces, "   ", -1000.0f), {&with_marks, "\u2581\u2581\u2581", 0.0f}}) {
    spec->tokens.push_back(text);
    spec->types.push_back(TokenType::kUserDefined);
    spec->scores.push_back(score);
    spec->add_space_prefix = false;
  }
  const Tokenizer a = Tokenizer::Create(with_spaces).value();
  const Tokenizer b = Tokenizer::Create(with_marks).value();
  for (const char* text : {"   ", "the   cairn", "\u2581\u2581\u2581", "the \u2581 \u2581cairn",
                           "          x", "\u2581", "a  b"}) {
    EXPECT_EQ(a.Encode(text).value(), b.Encode(text).value()) << text;
    EXPECT_EQ(a.Decode(a.Encode(text).value(), false), b.Decode(b.Encode(text).value(), false));
  }
  EXPECT_EQ(a.Encode("   ").value(), std::vector<Token>{run});
  EXPECT_EQ(a.Encode("\u2581\u2581\u2581").value(), std::vector<Token>{run});
  EXPECT_EQ(a.TokenBytes(run), "   ");
}

TEST(TokenizerFamilies, AnUnknownNameIsAnErrorThatListsTheKnown) {
  TokenizerSpec spec = ReadSpec("families.spec");
  spec.pre = "nobody-knows";
  const Status status = Tokenizer::Create(spec).status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("'nobody-knows'"), std::string::npos);
  EXPECT_NE(status.message().find("tekken"), std::string::npos);
}

}  // namespace
}  // namespace cairn
