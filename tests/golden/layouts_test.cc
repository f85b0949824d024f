// The same weights as other files lay them out: the logits must have the same bits. And layers
// without a period, which only some files can name, judged by the scalar reference.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "model/gguf.h"
#include "model/load.h"
#include "model/reference/reference_model.h"
#include "support/golden.h"
#include "support/model_runner.h"
#include "support/quantised_file.h"

namespace cairn {
namespace {

using testing::GgufWriter;
using testing::GoldenSet;
using testing::ModelRunner;
using testing::TestSequence;

constexpr int kTokens = 70;
constexpr double kLogitsMax = 1e-3;  // README.md

std::vector<float> Logits(const ModelFile& file, CpuLevel level, std::span<const Token> tokens) {
  const auto model =
      LoadModel(file, {.kv_type = KvType::kF32, .context_length = {}, .progress = {}});
  EXPECT_TRUE(model.ok()) << model.status().ToString();
  if (!model.ok()) return {};
  ModelRunner runner(**model, level, 2, kTokens);
  TestSequence sequence(**model);
  const int chunks[] = {kTokens};
  return runner.Feed(sequence, tokens, chunks);
}

std::vector<Token> SomeTokens(const std::string& fixture) {
  const GoldenSet set = testing::LoadGoldenSet(fixture);
  for (const auto& c : set.cases)
    if (c.tokens.size() >= kTokens) return {c.tokens.begin(), c.tokens.begin() + kTokens};
  return {};
}

// The same bits; and the reference reads the other layout too.
void ExpectSameModel(const ModelFile& file, const ModelFile& other,
                     const std::vector<Token>& tokens) {
  const std::vector<float> want = Logits(file, SupportedCpuLevels().back(), tokens);
  const std::vector<float> got = Logits(other, SupportedCpuLevels().back(), tokens);
  ASSERT_FALSE(want.empty());
  ASSERT_EQ(got.size(), want.size());
  EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0);
  const auto reference = LoadReferenceModel(other);
  ASSERT_TRUE(reference.ok()) << reference.status().ToString();
  const int rows[] = {kTokens - 1};
  const auto stored = (*reference)->Run(tokens, rows).logits[0];
  const float* last = got.data() + got.size() - stored.size();
  for (size_t i = 0; i < stored.size(); ++i) EXPECT_NEAR(last[i], stored[i], kLogitsMax);
}

// attn_q, attn_k and attn_v of each layer, one under the other as attn_qkv; all tensors F32.
std::vector<std::byte> WithFusedQkv(const GgufFile& file) {
  GgufWriter writer;
  testing::CopyEntries(file, writer);
  std::map<std::string, const GgufTensor*> tensors;
  for (const GgufTensor& tensor : file.tensors()) tensors[std::string(tensor.name)] = &tensor;
  for (const auto& [name, tensor] : tensors) {
    const size_t at = name.find(".attn_q.");
    const auto sibling = [&](const char* part) {
      const auto found = tensors.find(std::string(name).replace(at, 8, part));
      return found == tensors.end() ? nullptr : found->second;
    };
    const bool part =
        name.find(".attn_k.") != std::string::npos || name.find(".attn_v.") != std::string::npos;
    std::vector<float> values = testing::TensorValues(*tensor);
    std::vector<uint64_t> dims(tensor->dims.begin(), tensor->dims.end());
    std::string to = name;
    if (at != std::string::npos && sibling(".attn_k.") != nullptr) {
      for (const char* next : {".attn_k.", ".attn_v."}) {
        const std::vector<float> more = testing::TensorValues(*sibling(next));
        values.insert(values.end(), more.begin(), more.end());
        dims.back() += static_cast<uint64_t>(sibling(next)->dims.back());
      }
      to.replace(at, 8, ".attn_qkv.");
    } else if (part &&
               tensors.contains(std::string(name).replace(name.find(".attn_"), 8, ".attn_q."))) {
      continue;  // with q
    }
    writer.TensorF32s(to, dims, values);
  }
  return writer.Bytes();
}

class FusedQkv : public ::testing::TestWithParam<const char*> {};

TEST_P(FusedQkv, GivesTheBitsOfThreeTensors) {
  const auto file = GgufFile::Open(testing::kGoldenData + std::string(GetParam()) + "/model.gguf");
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  const std::vector<std::byte> bytes = WithFusedQkv(*file);
  const auto fused = GgufFile::FromBytes(bytes);
  ASSERT_TRUE(fused.ok()) << fused.status().ToString();
  size_t joined = 0;
  for (const GgufTensor& tensor : fused->tensors())
    joined += std::string_view(tensor.name).ends_with(".attn_qkv.weight");
  EXPECT_GT(joined, 0u);
  EXPECT_LT(fused->tensors().size(), file->tensors().size());
  ExpectSameModel(*file, *fused, SomeTokens(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Files, FusedQkv,
                         ::testing::Values("llama-b", "qwen3", "qwen35-a", "qwen3-next", "lfm2",
                                           "gemma3", "granite-h", "falcon-h1", "nemotron-h",
                                           "kimi-linear"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

// Qwen3-Next files of 2025 keep q, k, v and z of one key head after the other, as ssm_in.
TEST(Qwen3Next, RowsByKeyHeadGiveTheBitsOfRowsByKind) {
  const auto file = GgufFile::Open(testing::kGoldenData + std::string("qwen3-next/model.gguf"));
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  const int64_t heads = file->GetI64("qwen3next.ssm.group_count").value();
  const int64_t key = file->GetI64("qwen3next.ssm.state_size").value();
  const int64_t values = file->GetI64("qwen3next.ssm.inner_size").value() / heads;
  GgufWriter writer;
  testing::CopyEntries(*file, writer);
  for (const GgufTensor& tensor : file->tensors()) {
    std::string name(tensor.name);
    const bool attention =
        file->HasTensor(name.substr(0, name.rfind('.', name.size() - 8)) + ".attn_q.weight");
    std::vector<float> all = testing::TensorValues(tensor);
    std::vector<uint64_t> dims(tensor.dims.begin(), tensor.dims.end());
    if (name.ends_with(".attn_gate.weight")) continue;  // with attn_qkv
    if (name.ends_with(".attn_qkv.weight") && !attention) {
      const std::string prefix =
          name.substr(0, name.size() - std::string("attn_qkv.weight").size());
      const std::vector<float> z =
          testing::TensorValues(*file->FindTensor(prefix + "attn_gate.weight"));
      all.insert(all.end(), z.begin(), z.end());
      const auto k = static_cast<int64_t>(dims[0]);
      std::vector<float> by_head;
      int64_t base = 0;
      std::vector<std::pair<int64_t, int64_t>> parts;  // first row of the part, rows of a head
      for (const int64_t count : {key, key, values, values}) {
        parts.push_back({base, count});
        base += heads * count;
      }
      for (int64_t h = 0; h < heads; ++h) {
        for (const auto& [begin, count] : parts) {
          const auto from = all.begin() + (begin + h * count) * k;
          by_head.insert(by_head.end(), from, from + count * k);
        }
      }
      all = by_head;
      dims[1] = all.size() / dims[0];
      name = prefix + "ssm_in.weight";
    }
    writer.TensorF32s(name, dims, all);
  }
  const std::vector<std::byte> bytes = writer.Bytes();
  const auto old = GgufFile::FromBytes(bytes);
  ASSERT_TRUE(old.ok()) << old.status().ToString();
  ASSERT_TRUE(old->HasTensor("blk.0.ssm_in.weight"));
  ExpectSameModel(*file, *old, SomeTokens("qwen3-next"));
}

// The file with other entries under some keys.
std::vector<std::byte> WithArray(const GgufFile& file, std::string_view dropped,
                                 std::string_view key, const std::vector<int32_t>& values) {
  GgufWriter writer;
  for (const ModelFile::Entry& entry : file.entries()) {
    if (entry.key != dropped) testing::CopyEntry(entry, entry.key, writer);
  }
  std::string bools;
  for (const int32_t value : values) bools += static_cast<char>(value);
  const auto encoded = [&] {
    return testing::Encode(static_cast<uint32_t>(testing::GgufType::kBool)) +
           testing::Encode(static_cast<uint64_t>(values.size())) + bools;
  };
  writer.Raw(key, static_cast<uint32_t>(testing::GgufType::kArray), encoded());
  for (const GgufTensor& tensor : file.tensors()) {
    writer.TensorF32s(tensor.name, {tensor.dims.begin(), tensor.dims.end()},
                      testing::TensorValues(tensor));
  }
  return writer.Bytes();
}

TEST(LayerKinds, AnArrayGivesTheBitsOfTheInterval) {
  struct Case {
    const char* fixture;
    const char* dropped;
    const char* key;
    std::vector<int32_t> values;
  };
  for (const Case& c :
       {Case{"qwen35-a",
             "qwen35.full_attention_interval",
             "qwen35.attention.recurrent_layers",
             {1, 1, 1, 0, 1}},
        Case{"qwen35-b",
             "qwen35.full_attention_interval",
             "qwen35.attention.recurrent_layers",
             {1, 0, 1}},
        Case{"gemma3", "", "gemma3.attention.sliding_window_pattern", {1, 1, 1, 1, 1, 0, 1}}}) {
    SCOPED_TRACE(c.fixture);
    const auto file = GgufFile::Open(testing::kGoldenData + std::string(c.fixture) + "/model.gguf");
    ASSERT_TRUE(file.ok()) << file.status().ToString();
    const std::vector<std::byte> bytes = WithArray(*file, c.dropped, c.key, c.values);
    const auto copy = GgufFile::FromBytes(bytes);
    ASSERT_TRUE(copy.ok()) << copy.status().ToString();
    ExpectSameModel(*file, *copy, SomeTokens(c.fixture));
  }
}

TEST(LayerKinds, WindowsWithoutAPeriodAreTheReferences) {
  const auto file = GgufFile::Open(testing::kGoldenData + std::string("gemma3/model.gguf"));
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  const std::vector<std::byte> bytes =
      WithArray(*file, "", "gemma3.attention.sliding_window_pattern", {0, 1, 0, 1, 1, 1, 0});
  const auto copy = GgufFile::FromBytes(bytes);
  ASSERT_TRUE(copy.ok()) << copy.status().ToString();
  const auto reference = LoadReferenceModel(*copy);
  ASSERT_TRUE(reference.ok()) << reference.status().ToString();
  const std::vector<Token> tokens = SomeTokens("gemma3");
  const int rows[] = {40, kTokens - 1};
  const auto want = (*reference)->Run(tokens, rows).logits;
  for (const CpuLevel level : SupportedCpuLevels()) {
    const std::vector<float> got = Logits(*copy, level, tokens);
    ASSERT_EQ(got.size(), kTokens * want[0].size());
    for (size_t r = 0; r < 2; ++r) {
      for (size_t i = 0; i < want[r].size(); ++i)
        EXPECT_NEAR(got[rows[r] * want[r].size() + i], want[r][i], kLogitsMax);
    }
  }
}

}  // namespace
}  // namespace cairn
