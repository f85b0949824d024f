// A steady step allocates nothing from the heap, and the head works in pieces of any size.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include "model/gguf.h"
#include "model/load.h"
#include "support/golden.h"
#include "support/model_runner.h"

namespace {
std::atomic<int64_t> allocations{0};

void* CountedAllocation(std::size_t size, std::size_t alignment) {
  ++allocations;
  void* memory = std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (memory == nullptr) std::abort();
  return memory;
}
}  // namespace

void* operator new(std::size_t size) { return CountedAllocation(size, 16); }
void* operator new[](std::size_t size) { return CountedAllocation(size, 16); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return CountedAllocation(size, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t size, std::align_val_t alignment) {
  return CountedAllocation(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace cairn {
namespace {

using testing::TestSequence;

struct File {
  const char* path;
  KvType kv_type = KvType::kF16;
};

class SteadyStep : public ::testing::TestWithParam<File> {
 protected:
  void SetUp() override {
    const auto file = GgufFile::Open(testing::kGoldenData + GetParam().path);
    ASSERT_TRUE(file.ok()) << file.status().ToString();
    LoadOptions options;
    options.kv_type = GetParam().kv_type;
    auto model = LoadModel(*file, options);
    ASSERT_TRUE(model.ok()) << model.status().ToString();
    model_ = std::move(*model);
  }
  std::unique_ptr<Model> model_;
};

TEST_P(SteadyStep, AllocatesNothing) {
  constexpr int kSequences = 4, kRows = 12;
  ThreadPool pool(2);
  const KernelContext ctx{SupportedCpuLevels().back(), &pool};
  const auto workspace = model_->CreateWorkspace(kSequences * kRows, kSequences, 2);
  const std::vector<Token> tokens(kSequences * kRows, 7);
  std::vector<TestSequence> sequences;
  std::vector<AlignedBuffer> tap_states;
  std::vector<ForwardTap> taps;
  std::vector<ForwardSlice> slices;
  std::vector<int> logit_rows;
  std::vector<float> logits(kSequences * model_->info().vocab_size);
  for (int i = 0; i < kSequences; ++i) {
    sequences.emplace_back(*model_);
    tap_states.emplace_back(model_->layout().buffer_bytes());
    taps.push_back({i, tap_states.back().data()});
    logit_rows.push_back((i + 1) * kRows - 1);
  }
  for (int step = 0; step < 4; ++step) {
    slices.clear();
    for (int i = 0; i < kSequences; ++i) {
      slices.push_back({.row_begin = i * kRows,
                        .row_count = kRows,
                        .position = step * kRows,
                        .blocks = sequences[i].Blocks((step + 1) * kRows),
                        .state = sequences[i].state(),
                        .taps = {&taps[i], 1}});
    }
    const int64_t before = allocations;
    model_->Forward(
        ctx,
        {.tokens = tokens, .slices = slices, .logit_rows = logit_rows, .logits = logits.data()},
        *workspace);
    if (step > 0) {
      EXPECT_EQ(allocations, before);
    }
  }
}

TEST_P(SteadyStep, LogitsOfHiddenRowsComeInPieces) {
  ThreadPool pool(1);
  const KernelContext ctx{SupportedCpuLevels().back(), &pool};
  const int hidden = model_->info().hidden_size, vocab = model_->info().vocab_size;
  constexpr int kRows = 5;
  std::vector<float> values(kRows * hidden);
  for (size_t i = 0; i < values.size(); ++i) values[i] = 0.01f * static_cast<float>(i % 97) - 0.4f;
  std::vector<const float*> rows;
  for (int i = 0; i < kRows; ++i) rows.push_back(&values[i * hidden]);
  std::vector<float> in_pieces(kRows * vocab), at_once(kRows * vocab);
  model_->Logits(ctx, rows, in_pieces.data(), *model_->CreateWorkspace(1, 2, 1));
  model_->Logits(ctx, rows, at_once.data(), *model_->CreateWorkspace(1, kRows, 1));
  EXPECT_EQ(std::memcmp(in_pieces.data(), at_once.data(), at_once.size() * sizeof(float)), 0);
}

INSTANTIATE_TEST_SUITE_P(
    Files, SteadyStep,
    ::testing::Values(File{"qwen35-a/model.gguf"}, File{"llama-b/model.gguf"},
                      File{"quant/qwen35-k256/Q4_K_M.gguf"}, File{"quant/llama-a/Q8_0.gguf"},
                      File{"qwen35-b/model.gguf", KvType::kQ8_0},
                      File{"llama-b/model.gguf", KvType::kQ8_0}, File{"mamba2/model.gguf"},
                      File{"granite-h/model.gguf"}, File{"falcon-h1/model.gguf"},
                      File{"nemotron-h/model.gguf"}, File{"kimi-linear/model.gguf"}));

}  // namespace
}  // namespace cairn
