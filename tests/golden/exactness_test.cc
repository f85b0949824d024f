// The law of exactness at model level: the bits of logits and states depend on the tokens alone.
// Everything is compared with one cold run on the scalar level, one thread, one chunk.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>

#include "kernels/attention.h"
#include "model/decoder_model.h"
#include "model/load.h"
#include "model/open_model.h"
#include "support/golden.h"
#include "support/model_runner.h"

namespace cairn {
namespace {

using testing::GoldenSet;
using testing::ModelRunner;
using testing::TestPiece;
using testing::TestSequence;

constexpr int kRowsMax = 320;

struct File {
  const char* set;   // with the token sequences
  const char* path;  // below tests/golden/data
  KvType kv_type;
};

bool SameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

class Exactness : public ::testing::TestWithParam<File> {
 protected:
  void SetUp() override {
    auto file = OpenModelFile(testing::kGoldenData + GetParam().path);
    ASSERT_TRUE(file.ok()) << file.status().ToString();
    auto model =
        LoadModel(**file, {.kv_type = GetParam().kv_type, .context_length = {}, .progress = {}});
    ASSERT_TRUE(model.ok()) << model.status().ToString();
    model_ = std::move(*model);
    set_ = testing::LoadGoldenSet(GetParam().set);
    tokens_ = set_.Case("len300").tokens;
    vocab_ = model_->info().vocab_size;
    ModelRunner cold(*model_, CpuLevel::kScalar, /*threads=*/1, kRowsMax);
    end_ = std::make_unique<TestSequence>(*model_);
    const int whole[] = {kRowsMax};
    logits_ = cold.Feed(*end_, tokens_, whole);
  }

  // Cold logits of rows [begin, end).
  std::span<const float> Rows(int64_t begin, int64_t end) const {
    return std::span(logits_).subspan(begin * vocab_, (end - begin) * vocab_);
  }
  // Feeds tokens [sequence.position, end) and compares logits with the cold run's.
  void FeedAndCompare(ModelRunner& runner, TestSequence& sequence, int64_t end,
                      std::span<const int> chunks, const std::string& what) {
    const int64_t begin = sequence.position;
    const auto logits =
        runner.Feed(sequence, std::span(tokens_).subspan(begin, end - begin), chunks);
    EXPECT_TRUE(SameBits(logits, Rows(begin, end))) << what;
    EXPECT_TRUE(SameBits(runner.LogitsOfHidden(sequence), Rows(end - 1, end))) << what;
  }
  // The state after the first n tokens.
  TestSequence ColdState(int64_t n) const {
    ModelRunner runner(*model_, SupportedCpuLevels().back(), 1, kRowsMax);
    TestSequence sequence(*model_);
    const int whole[] = {kRowsMax};
    runner.Feed(sequence, std::span(tokens_).first(n), whole);
    return sequence;
  }

  std::unique_ptr<Model> model_;
  GoldenSet set_;
  std::vector<Token> tokens_;  // len300
  int64_t vocab_ = 0;
  std::vector<float> logits_;          // cold, every row
  std::unique_ptr<TestSequence> end_;  // cold, after all tokens
};

TEST_P(Exactness, EveryChunkingThreadCountAndLevelGivesTheSameBits) {
  std::mt19937 random(1);
  std::vector<int> any(300);
  for (int& chunk : any) chunk = 1 + random() % 80;
  struct Run {
    std::vector<int> chunks;
    int threads;
  };
  const Run runs[] = {
      {{64}, 1}, {{63, 1, 2, 61, 130}, 2}, {{255, 1, 1, 43}, 3}, {any, 4}, {{1}, 2}};
  for (const CpuLevel level : SupportedCpuLevels()) {
    for (const Run& run : runs) {
      // The scalar level is slow, and has made the run that all others are compared with.
      if (level == CpuLevel::kScalar && run.threads != 2) continue;
      ModelRunner runner(*model_, level, run.threads, kRowsMax);
      TestSequence sequence(*model_);
      const std::string what =
          std::string(CpuLevelName(level)) + ", chunk " + std::to_string(run.chunks[0]);
      FeedAndCompare(runner, sequence, tokens_.size(), run.chunks, what);
      EXPECT_EQ(sequence.Bytes(), end_->Bytes()) << what;
    }
  }
}

TEST_P(Exactness, StateAfter65ContinuesInto300) {
  ASSERT_TRUE(std::equal(tokens_.begin(), tokens_.begin() + 65, set_.Case("len65").tokens.begin()));
  for (const CpuLevel level : SupportedCpuLevels()) {
    ModelRunner runner(*model_, level, 2, kRowsMax);
    const TestSequence checkpoint = ColdState(65);
    TestSequence restored = checkpoint;
    const int whole[] = {kRowsMax};
    FeedAndCompare(runner, restored, tokens_.size(), whole, CpuLevelName(level));
    EXPECT_EQ(restored.Bytes(), end_->Bytes());
  }
}

TEST_P(Exactness, TapsInsideAChunkEqualTheColdStateThere) {
  const int rows[] = {0, 1, 2, 3, 15, 63, 64, 65, 130, 255, 256, 298, 299};
  ModelRunner runner(*model_, SupportedCpuLevels().back(), 2, kRowsMax);
  TestSequence sequence(*model_);
  std::vector<AlignedBuffer> buffers;
  std::vector<ForwardTap> taps;
  for (const int row : rows) {
    buffers.emplace_back(model_->layout().buffer_bytes());
    taps.push_back({row, buffers.back().data()});
  }
  TestPiece piece[] = {{&sequence, tokens_, taps}};
  EXPECT_TRUE(SameBits(runner.Step(piece), logits_));
  EXPECT_EQ(sequence.Bytes(), end_->Bytes());
  for (size_t i = 0; i < taps.size(); ++i) {
    TestSequence cold = ColdState(rows[i] + 1);
    EXPECT_EQ(std::memcmp(buffers[i].data(), cold.state(), buffers[i].size()), 0) << rows[i];
  }
}

TEST_P(Exactness, CompanionsInTheBatchChangeNothing) {
  const auto other_tokens = set_.Case("len300").tokens;
  std::mt19937 random(2);
  for (const CpuLevel level : SupportedCpuLevels()) {
    ModelRunner runner(*model_, level, 3, kRowsMax);
    TestSequence watched(*model_);
    std::vector<TestSequence> companions;
    for (int i = 0; i < 3; ++i) companions.emplace_back(*model_);
    while (watched.position < static_cast<int64_t>(tokens_.size())) {
      const int64_t begin = watched.position;
      const int64_t count = std::min<int64_t>(1 + random() % 90, tokens_.size() - begin);
      std::vector<TestPiece> pieces;
      const size_t place = random() % 4;
      size_t rows_before = 0;
      for (size_t i = 0; i < companions.size(); ++i) {
        if (i == place)
          rows_before =
              std::accumulate(pieces.begin(), pieces.end(), size_t{0},
                              [](size_t sum, const TestPiece& p) { return sum + p.tokens.size(); });
        if (i == place) pieces.push_back({&watched, std::span(tokens_).subspan(begin, count)});
        const int64_t from = companions[i].position;
        const int64_t n = std::min<int64_t>(1 + random() % 60, 300 - from);
        if (n > 0) pieces.push_back({&companions[i], std::span(other_tokens).subspan(from, n)});
      }
      if (place == companions.size()) {
        for (const TestPiece& p : pieces) rows_before += p.tokens.size();
        pieces.push_back({&watched, std::span(tokens_).subspan(begin, count)});
      }
      const auto logits = runner.Step(pieces);
      EXPECT_TRUE(SameBits(std::span(logits).subspan(rows_before * vocab_, count * vocab_),
                           Rows(begin, begin + count)))
          << CpuLevelName(level) << " at " << begin;
    }
    EXPECT_EQ(watched.Bytes(), end_->Bytes());
  }
}

TEST_P(Exactness, NoLogitRowsStillMovesTheState) {
  ModelRunner runner(*model_, SupportedCpuLevels().back(), 2, kRowsMax);
  TestSequence sequence(*model_);
  const ForwardSlice slice{.row_begin = 0,
                           .row_count = static_cast<int>(tokens_.size()),
                           .position = 0,
                           .blocks = sequence.Blocks(tokens_.size()),
                           .state = sequence.state(),
                           .taps = {}};
  model_->Forward(runner.context(),
                  {.tokens = tokens_, .slices = {&slice, 1}, .logit_rows = {}, .logits = nullptr},
                  runner.workspace());
  sequence.position = tokens_.size();
  EXPECT_EQ(sequence.Bytes(), end_->Bytes());
}

INSTANTIATE_TEST_SUITE_P(
    Files, Exactness,
    ::testing::Values(File{"qwen35-a", "qwen35-a/model.gguf", KvType::kF32},
                      File{"qwen35-a", "qwen35-a/model.gguf", KvType::kF16},
                      File{"qwen35-b", "qwen35-b/model.gguf", KvType::kF16},
                      File{"llama-a", "llama-a/model.gguf", KvType::kF32},
                      File{"llama-b", "llama-b/model.gguf", KvType::kF16},
                      File{"qwen3", "qwen3/model.gguf", KvType::kF16},
                      File{"lfm2", "lfm2/model.gguf", KvType::kF16},
                      File{"lfm2", "quant/lfm2/Q8_0.gguf", KvType::kF16},
                      File{"gemma3", "gemma3/model.gguf", KvType::kF32},
                      File{"gemma3", "gemma3/model.gguf", KvType::kF16},
                      File{"gemma3", "gemma3/model.gguf", KvType::kQ8_0},
                      File{"qwen3-next", "qwen3-next/model.gguf", KvType::kF16},
                      File{"kimi-linear", "kimi-linear/model.gguf", KvType::kF16},
                      File{"kimi-linear", "kimi-linear/model.gguf", KvType::kQ8_0},
                      File{"qwen35-a", "quant/qwen35-a/Q8_0.gguf", KvType::kF16},
                      File{"qwen35-a", "quant/qwen35-a/Q4_0.gguf", KvType::kF16},
                      File{"qwen35-a", "quant/qwen35-k256/Q4_K_M.gguf", KvType::kF16},
                      File{"qwen35-a", "quant/qwen35-k256/Q5_K_M.gguf", KvType::kF16},
                      File{"llama-a", "quant/llama-a/BF16.gguf", KvType::kF16},
                      File{"llama-a", "quant/llama-a/Q4_0.gguf", KvType::kF16},
                      File{"llama-a", "quant/llama-k256/Q6_K.gguf", KvType::kF16}),
    [](const auto& info) {
      std::string name = std::string(info.param.path) + "_" + KvTypeName(info.param.kv_type);
      for (char& c : name) {
        if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
      }
      return name;
    });

INSTANTIATE_TEST_SUITE_P(Mamba2Files, Exactness,
                         ::testing::Values(File{"mamba2", "mamba2/model.gguf", KvType::kF16},
                                           File{"granite-h", "granite-h/model.gguf", KvType::kF16},
                                           File{"falcon-h1", "falcon-h1/model.gguf", KvType::kF32},
                                           File{"nemotron-h", "nemotron-h/model.gguf",
                                                KvType::kF16}),
                         [](const auto& info) {
                           std::string name = info.param.set;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

INSTANTIATE_TEST_SUITE_P(Directories, Exactness,
                         ::testing::Values(File{"qwen35-a", "qwen35-a/hf", KvType::kF16},
                                           File{"llama-a", "quant/llama-a/mlx4", KvType::kF32},
                                           File{"llama-a", "quant/llama-a/mlx8", KvType::kF16},
                                           File{"qwen35-a", "quant/qwen35-a/mlx4", KvType::kF16},
                                           File{"qwen35-a", "quant/qwen35-a/mlx8", KvType::kF16}),
                         [](const auto& info) {
                           std::string name = info.param.path;
                           std::replace(name.begin(), name.end(), '-', '_');
                           std::replace(name.begin(), name.end(), '/', '_');
                           return name;
                         });

}  // namespace
}  // namespace cairn
