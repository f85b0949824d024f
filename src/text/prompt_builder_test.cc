#include "text/prompt_builder.h"

#include <gtest/gtest.h>

#include <chrono>

#include "text/testing.h"

namespace cairn {
namespace {

using testing::ReadFileOrDie;
using testing::ReadSpec;
using testing::TestDataPath;

// The golden vocabulary with more control tokens.
std::shared_ptr<const Tokenizer> TokenizerWith(const std::vector<std::string>& control_tokens) {
  TokenizerSpec spec = ReadSpec("golden.spec");
  for (const std::string& token : control_tokens) {
    spec.tokens.push_back(token);
    spec.types.push_back(TokenType::kControl);
  }
  return std::make_shared<const Tokenizer>(Tokenizer::Create(spec).value());
}

PromptBuilder BuilderFor(const std::string& template_name,
                         std::shared_ptr<const Tokenizer> tokenizer) {
  PromptBuilderOptions options;
  if (!template_name.empty()) {
    options.template_source = ReadFileOrDie(TestDataPath(template_name + ".jinja"));
  }
  return PromptBuilder::Create(std::move(tokenizer), options).value();
}

PromptBuilder Trailguide() {
  return BuilderFor("trailguide",
                    std::make_shared<const Tokenizer>(testing::LoadSpec("trailguide.spec")));
}

// Role letters and the text of each header.
std::string Describe(const PromptBuilder& builder) {
  const TurnHeaders& headers = builder.turn_headers();
  std::string out;
  for (size_t i = 0; i < headers.sequences.size(); ++i) {
    out += "SUAT"[static_cast<int>(headers.roles[i])];
    out += ':';
    out += builder.tokenizer().Decode(headers.sequences[i], false);
    out += ' ';
  }
  return out;
}

TEST(TurnHeaders, AreLearntFromEachFamilysTemplate) {
  const std::string chat_ml = "U:<|im_start|>user A:<|im_start|>assistant S:<|im_start|>system ";
  EXPECT_EQ(Describe(Trailguide()), chat_ml);
  EXPECT_EQ(Describe(BuilderFor("", TokenizerWith({}))),
            "U:<|im_start|>user A:<|im_start|>assistant "
            "T:<|im_start|>tool S:<|im_start|>system ");
  EXPECT_EQ(Describe(BuilderFor("qwen3", TokenizerWith({}))), chat_ml);
  EXPECT_EQ(Describe(BuilderFor("smollm2", TokenizerWith({}))),
            "U:<|im_start|>user A:<|im_start|>assistant T:<|im_start|>tool S:<|im_start|>system ");
  EXPECT_EQ(
      Describe(BuilderFor("llama3", TokenizerWith({"<|start_header_id|>", "<|end_header_id|>",
                                                   "<|eot_id|>", "<|begin_of_text|>"}))),
      "U:<|start_header_id|>user<|end_header_id|> A:<|start_header_id|>assistant<|end_header_id|> "
      "T:<|start_header_id|>tool<|end_header_id|> S:<|start_header_id|>system<|end_header_id|> ");
  EXPECT_EQ(Describe(BuilderFor("gemma3", TokenizerWith({"<start_of_turn>", "<end_of_turn>"}))),
            "U:<start_of_turn>user A:<start_of_turn>model ");
}

TEST(TurnHeaders, BosThatIsAHeadersFirstTokenIsKept) {  // SmolLM2
  TokenizerSpec spec = ReadSpec("golden.spec");
  spec.bos = 316;  // <|im_start|>
  const auto tokenizer = std::make_shared<const Tokenizer>(Tokenizer::Create(spec).value());
  EXPECT_EQ(Describe(BuilderFor("smollm2", tokenizer)),
            "U:<|im_start|>user A:<|im_start|>assistant T:<|im_start|>tool S:<|im_start|>system ");
}

// Closing tokens whose names say nothing are told from headers by what a chat ends with.
TEST(TurnHeaders, UnnamedClosingTokensAreNotHeaders) {
  PromptBuilderOptions options;
  options.template_source =
      "{% for m in messages %}<s10>{{ m.role }}\n{{ m.content }}<s12>\n{% endfor %}"
      "{% if add_generation_prompt %}<s10>assistant\n{% endif %}";
  const auto builder = PromptBuilder::Create(TokenizerWith({"<s10>", "<s12>"}), options).value();
  EXPECT_EQ(Describe(builder), "U:<s10>user A:<s10>assistant T:<s10>tool S:<s10>system ");
}

TEST(TurnHeaders, TemplateWithoutSpecialTokensHasNone) {
  PromptBuilderOptions options;
  options.template_source =
      "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:";
  const auto builder = PromptBuilder::Create(TokenizerWith({}), options).value();
  EXPECT_TRUE(builder.turn_headers().sequences.empty());
  const auto prompt = builder.FromChat({.messages_json = R"([{"role":"user","content":"hi"}])"});
  ASSERT_TRUE(prompt.ok());
  EXPECT_EQ(prompt->system_end, 0);
  EXPECT_EQ(prompt->tail_begin, static_cast<int64_t>(prompt->tokens.size()));
}

// A hostile file must not hold a start for minutes: the first probe that runs away is the last.
TEST(TurnHeaders, RunawayTemplateHasNoneAndLoadsSoon) {
  for (const char* body : {"{% for j in range(100000) %}{% endfor %}", "{{ 'x' * 9000 }}"}) {
    PromptBuilderOptions options;
    options.template_source =
        std::string("<|im_start|>{% for i in range(100000) %}") + body + "{% endfor %}";
    const auto begin = std::chrono::steady_clock::now();
    const auto builder = PromptBuilder::Create(TokenizerWith({}), options).value();
    EXPECT_TRUE(builder.turn_headers().sequences.empty());
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  }
}

// Positions whose prefix decodes to the text before the header.
TEST(PromptBuilder, FindsTurnsSystemEndAndTail) {
  const PromptBuilder builder = Trailguide();
  const auto prompt = builder.FromChat({.messages_json =
                                            R"([{"role":"system","content":"Be brief."},
      {"role":"user","content":"\n\nHow high?"},{"role":"assistant","content":"2476 m."},
      {"role":"user","content":"And now?"},{"role":"tool","content":"x"}])"});
  ASSERT_TRUE(prompt.ok());
  EXPECT_EQ(builder.tokenizer().Decode(prompt->tokens, false), prompt->text);
  const auto turns = FindTurns(prompt->tokens, builder.turn_headers());
  const auto before = [&](int64_t position) {
    return builder.tokenizer().Decode(
        std::span(prompt->tokens).first(static_cast<size_t>(position)), false);
  };
  std::vector<TurnRole> roles;
  for (const TurnStart& turn : turns) {
    roles.push_back(turn.role);
    EXPECT_EQ(prompt->text.substr(before(turn.position).size(), 12), "<|im_start|>");
  }
  EXPECT_EQ(roles, (std::vector<TurnRole>{TurnRole::kSystem, TurnRole::kUser, TurnRole::kAssistant,
                                          TurnRole::kUser, TurnRole::kUser, TurnRole::kAssistant}));
  EXPECT_EQ(before(prompt->system_end), "<|im_start|>system\nBe brief.<|im_end|>\n");
  EXPECT_EQ(prompt->text.substr(before(prompt->tail_begin).size()), "<|im_start|>assistant\n");
  EXPECT_FALSE(prompt->raw);
}

TEST(PromptBuilder, TurnStartsDoNotMoveWithWhatFollows) {
  const PromptBuilder builder = Trailguide();
  const auto tokens = [&](const std::string& content) {
    return builder
        .FromChat(
            {.messages_json = R"([{"role":"system","content":"s"},{"role":"user","content":")" +
                              content + "\"}]"})
        .value();
  };
  const Prompt first = tokens("plain");
  for (const char* content : {"\\n\\n x", " x", "1", "", "\xCC\x81", "<|im_end|>"}) {
    const Prompt other = tokens(content);
    EXPECT_EQ(other.system_end, first.system_end) << content;
    EXPECT_TRUE(std::equal(first.tokens.begin(), first.tokens.begin() + first.system_end,
                           other.tokens.begin()));
  }
}

TEST(PromptBuilder, ChatPromptsEqualTheReference) {
  const PromptBuilder builder = BuilderFor("", TokenizerWith({}));
  const auto prompt = builder.FromChat(
      {.messages_json = R"([{"role": "user", "content": "hi"}])", .add_generation_prompt = true});
  ASSERT_TRUE(prompt.ok());
  EXPECT_EQ(prompt->text, "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(prompt->tokens, (std::vector<Token>{316, 117, 115, 262, 10, 274, 317, 10, 316, 271, 115,
                                                105, 260, 97, 291, 10}));
}

TEST(PromptBuilder, RawTextAndTokenArrays) {
  TokenizerSpec spec = ReadSpec("golden.spec");
  spec.bos = spec.eos;
  spec.add_bos = true;
  const auto tokenizer = std::make_shared<const Tokenizer>(Tokenizer::Create(spec).value());
  const PromptBuilder builder = BuilderFor("", tokenizer);
  const Prompt raw = builder.FromText("The cairn").value();
  EXPECT_EQ(raw.tokens, (std::vector<Token>{*spec.bos, 270, 297}));
  EXPECT_TRUE(raw.raw);
  EXPECT_EQ(raw.system_end, 0);
  EXPECT_EQ(raw.tail_begin, 3);
  EXPECT_EQ(builder.FromTokens({270, 297}).value().tokens, (std::vector<Token>{270, 297}));
  EXPECT_EQ(builder.FromTokens({270, -1}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(builder.FromTokens({tokenizer->vocab_size()}).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(PromptBuilder, RefusedMessagesAreTheClientsMistake) {
  const PromptBuilder builder = BuilderFor("gemma3", TokenizerWith({}));
  const auto prompt =
      builder.FromChat({.messages_json = R"([{"role":"assistant","content":"x"}])"});
  EXPECT_EQ(prompt.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(prompt.status().message(),
            "Conversation roles must alternate user/assistant/user/assistant/...");
}

TEST(PromptBuilder, BrokenTemplateIsAnError) {
  EXPECT_FALSE(PromptBuilder::Create(TokenizerWith({}), {.template_source = "{% if %}"}).ok());
}

}  // namespace
}  // namespace cairn
