// The bundled model's evaluation dialogues, through template, tokenizer and engine: replies equal
// to the reference replies (greedy, from an independent engine) wherever its two best
// log-probabilities were not a tie, cold and over the cache, and the same accuracy.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "load_model.h"

namespace cairn {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kTieGap = 0.01;  // below it another engine may choose the other token
constexpr int kTokensMax = 96;    // as in the reference replies

struct Dialogue {
  std::string id, answer;
  ChatPrompt chat;
  std::vector<Token> reference;  // end token included
  double min_gap = 0;
};

std::vector<Dialogue> ReadDialogues() {
  std::ifstream eval("tests/scenarios/data/trailguide_eval.jsonl"),
      replies("tests/scenarios/data/trailguide_replies.jsonl");
  std::vector<Dialogue> dialogues;
  for (std::string a, b; std::getline(eval, a) && std::getline(replies, b);) {
    const Json e = Json::parse(a), r = Json::parse(b);
    CHECK(e["id"] == r["id"]);
    Dialogue d;
    d.id = e.at("id").get<std::string>();
    d.answer = e.at("answer").get<std::string>();
    d.reference = r.at("tokens").get<std::vector<Token>>();
    d.min_gap = r.at("min_gap").get<double>();
    d.chat.messages_json = e["messages"].dump();
    if (e["tools"].is_array()) d.chat.tools_json = e["tools"].dump();
    dialogues.push_back(std::move(d));
  }
  return dialogues;
}

struct Reply {
  std::vector<Token> tokens;  // end token included
  ReuseReport reuse;
};

class TrailguideTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto loaded = LoadModelFile({});
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    loaded_ = new LoadedModel(std::move(*loaded));
    dialogues_ = new std::vector<Dialogue>(ReadDialogues());
  }
  static void TearDownTestSuite() {
    delete loaded_;
    delete dialogues_;
  }

  static std::unique_ptr<Engine> MakeEngine(int64_t stride) {
    EngineFlags flags;
    flags.prefill_step_size = stride;
    auto options = ResolveEngineOptions({}, flags);
    CHECK(options.ok());
    AddModelOptions(*loaded_, flags, *options);
    auto engine = Engine::Create(loaded_->model, *options);
    CHECK(engine.ok());
    return std::move(*engine);
  }

  static std::shared_ptr<TokenStream> Submit(Engine& engine, const Dialogue& d, bool cache) {
    auto prompt = loaded_->prompts->FromChat(d.chat);
    CHECK(prompt.ok());
    Request request;
    request.prompt = std::move(prompt->tokens);
    request.system_end = prompt->system_end;
    request.tail_begin = prompt->tail_begin;
    request.max_tokens = kTokensMax;
    request.cache_prompt = cache;
    auto stream = engine.Submit(std::move(request));
    CHECK(stream.ok());
    return *stream;
  }

  static Reply Wait(TokenStream& stream) {
    Reply reply;
    while (true) {
      auto event = stream.Next(std::chrono::steady_clock::now() + std::chrono::minutes(5));
      CHECK(event.has_value());
      if (const auto* a = std::get_if<AdmittedEvent>(&*event)) reply.reuse = a->reuse;
      if (const auto* t = std::get_if<TokenEvent>(&*event)) reply.tokens.push_back(t->token);
      if (const auto* e = std::get_if<EndEvent>(&*event)) {
        CHECK(e->error.ok());
        if (e->stop_token) reply.tokens.push_back(*e->stop_token);
        return reply;
      }
    }
  }

  static LoadedModel* loaded_;
  static std::vector<Dialogue>* dialogues_;
};

LoadedModel* TrailguideTest::loaded_ = nullptr;
std::vector<Dialogue>* TrailguideTest::dialogues_ = nullptr;

// All dialogues at once through `engine`; compared with the reference. Returns the number of exact
// answers.
int Compare(const std::vector<Dialogue>& dialogues, const std::vector<Reply>& replies,
            const Tokenizer& tokenizer, int* reference_exact) {
  int exact = 0;
  *reference_exact = 0;
  for (size_t i = 0; i < dialogues.size(); ++i) {
    const Dialogue& d = dialogues[i];
    if (d.min_gap > kTieGap) {
      EXPECT_EQ(replies[i].tokens, d.reference)
          << d.id << ", gap " << d.min_gap << ": " << tokenizer.Decode(replies[i].tokens, true);
    }
    exact += tokenizer.Decode(replies[i].tokens, true) == d.answer;
    *reference_exact += tokenizer.Decode(d.reference, true) == d.answer;
  }
  return exact;
}

TEST_F(TrailguideTest, RepliesEqualTheReferenceColdAndOverTheCache) {
  ASSERT_EQ(dialogues_->size(), 200u);
  auto engine = MakeEngine(128);
  std::vector<Reply> cold, first, again;
  for (const Dialogue& d : *dialogues_) cold.push_back(Wait(*Submit(*engine, d, false)));
  for (std::vector<Reply>* run : {&first, &again}) {
    std::vector<std::shared_ptr<TokenStream>> streams;
    for (const Dialogue& d : *dialogues_) streams.push_back(Submit(*engine, d, true));
    for (auto& s : streams) run->push_back(Wait(*s));
  }
  int reference_exact = 0;
  const int exact = Compare(*dialogues_, cold, *loaded_->tokenizer, &reference_exact);
  EXPECT_EQ(exact, reference_exact);
  int64_t replayed = 0;
  for (size_t i = 0; i < cold.size(); ++i) {
    EXPECT_EQ(cold[i].reuse.restore_point, 0);
    EXPECT_EQ(first[i].tokens, cold[i].tokens) << (*dialogues_)[i].id;
    EXPECT_EQ(again[i].tokens, cold[i].tokens) << (*dialogues_)[i].id;
    replayed += again[i].reuse.replayed_tokens();
  }
  EXPECT_EQ(replayed, 0) << "a prompt that was asked before ends on a checkpoint";
  std::printf("exact answers: %d of 200, reference %d\n", exact, reference_exact);
}

}  // namespace
}  // namespace cairn
