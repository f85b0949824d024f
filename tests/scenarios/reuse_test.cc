// What is reused, on real models through the engine: nothing is replayed where nothing has to be,
// and what comes out is the plain cold run's, bit for bit.
#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "model/gguf.h"
#include "model/load.h"
#include "scenarios/plain_memo.h"
#include "support/engine_harness.h"

namespace cairn::law {
namespace {

constexpr int kStride = 64;
constexpr int kStepRows = 48;

std::unique_ptr<Model> Load(const std::string& path) {
  const auto file = GgufFile::Open("tests/golden/data/" + path);
  CHECK(file.ok());
  auto model = LoadModel(*file);
  CHECK(model.ok());
  return std::move(*model);
}

// An engine stepped by hand, whose every sampled row is compared with the plain run.
class Server {
 public:
  explicit Server(const std::string& path)
      : model_(Load(path)), plain_(*model_, DetectCpuLevel(), nullptr) {
    options_.cpu_level = DetectCpuLevel();
    options_.threads = 2;
    options_.cache.stride = kStride;
    options_.cache.bytes_max = uint64_t{64} << 20;
    options_.step_rows_max = kStepRows;
    observer_.logits = [this](const std::string&, int64_t position, std::span<const float> logits) {
      rows_[position].assign(logits.begin(), logits.end());
    };
    core_ = std::make_unique<EngineCore>(*model_, options_, observer_, stats_);
  }

  std::vector<Token> Prompt(uint64_t seed, int64_t count) const {
    return RandomTokens(seed, count, model_->info().vocab_size);
  }

  std::shared_ptr<TokenStream> Submit(std::vector<Token> prompt, int64_t max_tokens = 4) {
    Request r;
    r.raw = true;
    r.tail_begin = static_cast<int64_t>(prompt.size());
    r.prompt = std::move(prompt);
    r.max_tokens = max_tokens;
    auto stream = std::make_shared<TokenStream>();
    ++stats_.queue_length;
    core_->Enqueue(std::make_unique<Sequence>(next_id_++, std::move(r), stream, max_tokens));
    return stream;
  }

  bool Step() {
    const bool more = core_->Step();
    core_->CheckInvariants();
    return more;
  }

  EngineCore& core() { return *core_; }
  const EngineStats& stats() const { return stats_; }

  // Runs the prompt to its end and compares each row that was sampled from.
  Outcome Run(const std::vector<Token>& prompt, int64_t max_tokens = 4) {
    rows_.clear();
    auto stream = Submit(prompt, max_tokens);
    while (Step()) {
    }
    Outcome outcome;
    outcome.AddAll(*stream);
    EXPECT_TRUE(outcome.end && outcome.end->reason == FinishReason::kLength);
    EXPECT_EQ(outcome.tokens.size(), static_cast<size_t>(max_tokens));
    EXPECT_EQ(rows_.size(), static_cast<size_t>(max_tokens));
    std::vector<Token> tokens = prompt;
    tokens.insert(tokens.end(), outcome.tokens.begin(), outcome.tokens.end());
    for (const auto& [position, logits] : rows_) {
      const auto want =
          plain_.Logits(std::span<const Token>(tokens).first(static_cast<size_t>(position)));
      EXPECT_EQ(std::memcmp(logits.data(), want.data(), want.size_bytes()), 0) << position;
    }
    return outcome;
  }

 private:
  const std::unique_ptr<Model> model_;
  PlainMemo plain_;
  EngineOptions options_;
  EngineObserver observer_;
  EngineStats stats_;
  std::unique_ptr<EngineCore> core_;
  std::map<int64_t, std::vector<float>> rows_;  // of this Run, by position
  uint64_t next_id_ = 1;
};

constexpr const char* kHybrid = "qwen35-a/model.gguf";
constexpr const char* kKvOnly = "quant/llama-a/Q8_0.gguf";

class ReuseTest : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Models, ReuseTest,
                         ::testing::Values(kHybrid, kKvOnly, "quant/qwen35-k256/Q4_K_M.gguf"));

TEST_P(ReuseTest, RegenerateReplaysNothing) {
  Server server(GetParam());
  for (const int64_t n : {int64_t{1}, int64_t{17}, int64_t{63}, int64_t{64}, int64_t{65},
                          int64_t{2 * kStride}, int64_t{5 * kStride}, int64_t{300}}) {
    SCOPED_TRACE(n);
    const std::vector<Token> prompt = server.Prompt(static_cast<uint64_t>(n), n);
    const Outcome first = server.Run(prompt);
    const Outcome second = server.Run(prompt);
    EXPECT_EQ(second.reuse->restore_point, n);
    EXPECT_EQ(second.reuse->replayed_tokens(), 0);
    EXPECT_EQ(second.reuse->miss_reason, std::nullopt);
    EXPECT_EQ(second.tokens, first.tokens);
    // A longer and a shorter answer, too.
    EXPECT_EQ(server.Run(prompt, 9).reuse->replayed_tokens(), 0);
    EXPECT_EQ(server.Run(prompt, 1).reuse->replayed_tokens(), 0);
  }
}

TEST_P(ReuseTest, BothBranchesStayAfterAnEdit) {
  Server server(GetParam());
  const std::vector<Token> a = server.Prompt(1, 330);
  std::vector<Token> edited = a;
  edited[200] = (edited[200] + 1) % 300;
  server.Run(a);
  const Outcome second = server.Run(edited);
  EXPECT_EQ(second.reuse->matched, 200);
  const Outcome third = server.Run(a);
  EXPECT_EQ(third.reuse->replayed_tokens(), 0);
  EXPECT_EQ(server.Run(edited).reuse->replayed_tokens(), 0);
}

TEST_P(ReuseTest, TheChatGoesOnFromItsAnswer) {
  Server server(GetParam());
  std::vector<Token> chat = server.Prompt(2, 150);
  for (int turn = 0; turn < 4; ++turn) {
    const Outcome outcome = server.Run(chat, 30);
    if (turn > 0) {
      EXPECT_GE(outcome.reuse->restore_point, static_cast<int64_t>(chat.size()) - 21);
    }
    chat.insert(chat.end(), outcome.tokens.begin(), outcome.tokens.end());
    const std::vector<Token> question = server.Prompt(static_cast<uint64_t>(100 + turn), 20);
    chat.insert(chat.end(), question.begin(), question.end());
  }
}

TEST_P(ReuseTest, AnAbortedPrefillGoesOnWhereItStopped) {
  for (const int steps : {1, 2, 3, 5}) {
    SCOPED_TRACE(steps);
    Server server(GetParam());
    const std::vector<Token> prompt = server.Prompt(3, 320);
    auto stream = server.Submit(prompt);
    for (int i = 0; i < steps; ++i) server.Step();
    stream->Cancel();
    while (server.Step()) {
    }
    Outcome aborted;
    aborted.AddAll(*stream);
    ASSERT_TRUE(aborted.end && aborted.end->reason == FinishReason::kCancelled);
    ASSERT_FALSE(aborted.progress.empty());
    const int64_t reached = aborted.progress.back().processed;
    EXPECT_EQ(reached, steps * kStepRows);
    const Outcome again = server.Run(prompt);
    // A finish checkpoint at most 16 tokens behind another one is not taken.
    EXPECT_GE(again.reuse->restore_point, reached - 16);
    EXPECT_LE(again.reuse->restore_point, reached);
  }
}

// Its prompt is replayed after its first token was sent; the client has heard of the whole prompt.
TEST_P(ReuseTest, AFullHitThatIsPreemptedAndEvictedSendsNoProgressAfterItsToken) {
  Server server(GetParam());
  const std::vector<Token> prompt = server.Prompt(7, 100), longer = server.Prompt(8, 400);
  server.Run(prompt);
  auto older = server.Submit(longer);
  auto younger = server.Submit(prompt, 8);
  server.Step();
  Outcome outcome;
  outcome.AddAll(*younger);
  ASSERT_EQ(outcome.tokens.size(), 1u);
  EXPECT_EQ(outcome.reuse->replayed_tokens(), 0);
  // No more blocks than the older one will need: everything else goes.
  server.core().SetPoolLimits(7, std::nullopt);
  while (server.Step()) {
  }
  EXPECT_GT(server.stats().preemptions, 0u);
  outcome.AddAll(*younger);
  EXPECT_TRUE(outcome.errors.empty()) << outcome.errors.front();
  EXPECT_TRUE(outcome.progress.empty());
  EXPECT_EQ(outcome.tokens.size(), 8u);
}

TEST(KvOnlyReuse, GoesToTheExactCommonPrefix) {
  Server server(kKvOnly);
  const std::vector<Token> base = server.Prompt(4, 333);
  server.Run(base);
  for (const size_t shared : {1u, 2u, 15u, 63u, 64u, 65u, 128u, 200u, 255u, 256u, 257u, 332u}) {
    SCOPED_TRACE(shared);
    std::vector<Token> prompt(base.begin(), base.begin() + static_cast<std::ptrdiff_t>(shared));
    prompt.push_back((base[shared] + 1) % 300);
    const std::vector<Token> rest = server.Prompt(shared + 1000, 40);
    prompt.insert(prompt.end(), rest.begin(), rest.end());
    const Outcome outcome = server.Run(prompt);
    EXPECT_EQ(outcome.reuse->restore_point, static_cast<int64_t>(shared));
    EXPECT_EQ(outcome.reuse->miss_reason, std::nullopt);
  }
}

// A prompt that ends inside another one has no hidden row of its own: its last token is replayed.
TEST(KvOnlyReuse, ATruncatedPromptReplaysOneToken) {
  Server server(kKvOnly);
  const std::vector<Token> base = server.Prompt(5, 333);
  server.Run(base);
  for (const int64_t n : {2, 64, 65, 200, 300}) {
    SCOPED_TRACE(n);
    const std::vector<Token> prompt(base.begin(), base.begin() + n);
    EXPECT_EQ(server.Run(prompt).reuse->replayed_tokens(), 1);
    EXPECT_EQ(server.Run(prompt).reuse->replayed_tokens(), 0);
  }
}

// The newest checkpoint inside the shared prefix, on a model that cannot be trimmed.
TEST(HybridReuse, GoesToTheNewestCheckpointOfTheCommonPrefix) {
  Server server(kHybrid);
  const std::vector<Token> base = server.Prompt(6, 400);
  server.Run(base);
  for (const int64_t shared : {63, 64, 100, 128, 255, 319, 383}) {
    SCOPED_TRACE(shared);
    std::vector<Token> prompt = base;
    prompt[static_cast<size_t>(shared)] = (base[static_cast<size_t>(shared)] + 1) % 300;
    // A branch mark lies at the matched length once a request has revealed it.
    EXPECT_EQ(server.Run(prompt).reuse->restore_point, shared / kStride * kStride);
  }
}

}  // namespace
}  // namespace cairn::law
