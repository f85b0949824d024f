// Loading: what is refused and how, what `inspect` says, what a fingerprint covers.
#include "model/load.h"
#include "model/gguf.h"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "model/inspect.h"
#include "model/reference/reference_model.h"
#include "support/gguf_writer.h"

namespace cairn {
namespace {

using testing::GgufWriter;

constexpr int kHidden = 16, kFfn = 24, kVocab = 10, kHeads = 2, kHeadDim = 8;

// A one-layer llama, with room for changes.
struct TinyLlama {
  std::string architecture = "llama";
  uint32_t heads = kHeads;
  uint32_t key_length = kHeadDim;
  uint32_t context_length = 128;
  float norm_eps = 1e-5f;
  std::string rope_scaling;
  uint64_t ffn_rows = kFfn;
  std::string left_out;    // a tensor
  std::string additional;  // a tensor of one float

  std::vector<std::byte> Bytes() const {
    GgufWriter w;
    w.String("general.architecture", architecture).String("general.name", "tiny");
    w.U32("llama.block_count", 1).U32("llama.context_length", context_length);
    w.U32("llama.embedding_length", kHidden).U32("llama.feed_forward_length", kFfn);
    w.U32("llama.attention.head_count", heads).U32("llama.attention.key_length", key_length);
    w.U32("llama.attention.value_length", key_length);
    w.F32("llama.attention.layer_norm_rms_epsilon", norm_eps);
    if (!rope_scaling.empty()) w.String("llama.rope.scaling.type", rope_scaling);
    const auto add = [&](const std::string& name, std::vector<uint64_t> dims) {
      if (name == left_out) return;
      uint64_t count = 1;
      for (const uint64_t d : dims) count *= d;
      std::vector<float> values(count);
      for (uint64_t i = 0; i < count; ++i) values[i] = 0.01f * static_cast<float>(i % 17);
      w.TensorF32s(name, std::move(dims), values);
    };
    add("token_embd.weight", {kHidden, kVocab});
    add("output_norm.weight", {kHidden});
    add("blk.0.attn_norm.weight", {kHidden});
    add("blk.0.ffn_norm.weight", {kHidden});
    for (const char* name : {"attn_q", "attn_k", "attn_v", "attn_output"}) {
      add(std::string("blk.0.") + name + ".weight", {kHidden, kHidden});
    }
    add("blk.0.ffn_gate.weight", {kHidden, ffn_rows});
    add("blk.0.ffn_up.weight", {kHidden, kFfn});
    add("blk.0.ffn_down.weight", {kFfn, kHidden});
    if (!additional.empty()) add(additional, {1});
    return w.Bytes();
  }
};

Result<std::unique_ptr<Model>> LoadBytes(const std::vector<std::byte>& bytes,
                                         const LoadOptions& options = {}) {
  ASSIGN_OR_RETURN(const GgufFile file, GgufFile::FromBytes(bytes));
  return LoadModel(file, options);
}

TEST(LoadModel, ReadsWhatTheFileSays) {
  uint64_t done = 0, total = 0;
  LoadOptions options;
  options.progress = [&](uint64_t bytes_done, uint64_t bytes_total) {
    EXPECT_GE(bytes_done, done);
    done = bytes_done;
    total = bytes_total;
  };
  const auto model = LoadBytes(TinyLlama().Bytes(), options);
  ASSERT_TRUE(model.ok()) << model.status().ToString();
  const ModelInfo& info = (*model)->info();
  EXPECT_EQ(info.name, "tiny");
  EXPECT_EQ(info.architecture, "llama");
  EXPECT_EQ(info.quantization, "F32");
  EXPECT_EQ(info.vocab_size, kVocab);
  EXPECT_EQ(info.hidden_size, kHidden);
  EXPECT_EQ(info.context_length, 128);
  const int64_t parameters =
      kVocab * kHidden + 3 * kHidden + 4 * kHidden * kHidden + 3 * kHidden * kFfn;
  EXPECT_EQ(info.parameter_count, parameters);
  EXPECT_EQ(done, parameters * sizeof(float));
  EXPECT_EQ(total, done);
  EXPECT_TRUE((*model)->layout().trimmable());
  EXPECT_EQ((*model)->layout().kv_bytes_per_token(), 2u * 2 * kHeads * kHeadDim);
  EXPECT_EQ((*model)->layout().hidden_bytes(), kHidden * sizeof(float));
}

struct Refusal {
  const char* what;
  std::function<void(TinyLlama&)> change;
  StatusCode code;
  const char* message;  // part of it
};

TEST(LoadModel, RefusesWithWhatGotWanted) {
  const Refusal refusals[] = {
      {"architecture", [](TinyLlama& t) { t.architecture = "nonesuch"; }, StatusCode::kUnsupported,
       "unknown architecture 'nonesuch'; this version knows qwen35, "},
      {"head size", [](TinyLlama& t) { t.key_length = 12; }, StatusCode::kUnsupported,
       "multiple of 8"},
      {"heads", [](TinyLlama& t) { t.heads = 0; }, StatusCode::kDataLoss,
       "llama.attention.head_count is 0, wanted 1 to"},
      {"epsilon", [](TinyLlama& t) { t.norm_eps = -1; }, StatusCode::kDataLoss, "epsilon"},
      {"rope", [](TinyLlama& t) { t.rope_scaling = "dynamic"; }, StatusCode::kUnsupported,
       "'dynamic'"},
      {"shape", [](TinyLlama& t) { t.ffn_rows = 23; }, StatusCode::kInvalidArgument, "ffn_gate"},
      {"missing tensor", [](TinyLlama& t) { t.left_out = "blk.0.attn_k.weight"; },
       StatusCode::kNotFound, "blk.0.attn_k.weight"},
      {"missing embedding", [](TinyLlama& t) { t.left_out = "token_embd.weight"; },
       StatusCode::kNotFound, "token_embd.weight"},
      {"tensor of another model", [](TinyLlama& t) { t.additional = "blk.0.attn_q_norm.weight"; },
       StatusCode::kUnsupported, "blk.0.attn_q_norm.weight has no place"},
  };
  for (const Refusal& refusal : refusals) {
    TinyLlama tiny;
    refusal.change(tiny);
    const auto model = LoadBytes(tiny.Bytes());
    ASSERT_FALSE(model.ok()) << refusal.what;
    EXPECT_EQ(model.status().code(), refusal.code) << model.status().ToString();
    EXPECT_NE(model.status().message().find(refusal.message), std::string::npos)
        << model.status().ToString();
  }
}

TEST(LoadModel, ContextLengthComesFromTheOptionFirst) {
  LoadOptions options;
  options.context_length = 4096;
  const auto model = LoadBytes(TinyLlama().Bytes(), options);
  ASSERT_TRUE(model.ok());
  EXPECT_EQ((*model)->info().context_length, 4096);
  EXPECT_EQ((*model)->info().trained_context_length, 128);
  for (const int64_t none : {int64_t{0}, kContextLengthMax + 1}) {
    options.context_length = none;
    EXPECT_EQ(LoadBytes(TinyLlama().Bytes(), options).status().code(),
              StatusCode::kInvalidArgument);
  }
}

TEST(LoadModel, ADeclaredContextBeyondTheExactAnglesIsCut) {
  TinyLlama tiny;
  tiny.context_length = 10 << 20;
  const auto model = LoadBytes(tiny.Bytes());
  ASSERT_TRUE(model.ok()) << model.status().ToString();
  EXPECT_EQ((*model)->info().trained_context_length, 10 << 20);
  EXPECT_EQ((*model)->info().context_length, kContextLengthMax);
}

TEST(LoadModel, FingerprintCoversWeightsHyperparametersAndKvType) {
  const auto print = [](const std::vector<std::byte>& bytes, KvType kv_type) {
    LoadOptions options;
    options.kv_type = kv_type;
    const auto model = LoadBytes(bytes, options);
    EXPECT_TRUE(model.ok()) << model.status().ToString();
    return (*model)->info().fingerprint;
  };
  const auto bytes = TinyLlama().Bytes();
  const uint64_t fingerprint = print(bytes, KvType::kF16);
  EXPECT_EQ(print(bytes, KvType::kF16), fingerprint);
  EXPECT_NE(print(bytes, KvType::kF32), fingerprint);
  EXPECT_NE(print(bytes, KvType::kQ8_0), fingerprint);
  TinyLlama other_eps;
  other_eps.norm_eps = 1e-6f;
  EXPECT_NE(print(other_eps.Bytes(), KvType::kF16), fingerprint);
  auto other_weight = bytes;
  other_weight.back() ^= std::byte{1};  // the last tensor ends the file
  EXPECT_NE(print(other_weight, KvType::kF16), fingerprint);
}

TEST(LoadReferenceModel, RefusesTheSameFiles) {
  TinyLlama tiny;
  tiny.architecture = "nonesuch";
  const auto bytes = tiny.Bytes();
  auto file = GgufFile::FromBytes(bytes);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(LoadReferenceModel(*file).status().code(), StatusCode::kUnsupported);
}

TEST(InspectModel, SaysWhatAStateCosts) {
  // The bundled model states these figures in its card.
  const auto file = GgufFile::Open("models/trailguide/trailguide.gguf");
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  const auto facts = InspectModel(*file, KvType::kF16);
  ASSERT_TRUE(facts.ok()) << facts.status().ToString();
  EXPECT_EQ(facts->architecture, "qwen35");
  EXPECT_EQ(facts->state_bytes, 125952u);
  EXPECT_EQ(facts->kv_bytes_per_token, 1024u);
  // int8, with two bytes of scale for 32 dims of a key and for a value.
  const auto int8 = InspectModel(*file, KvType::kQ8_0);
  ASSERT_TRUE(int8.ok()) << int8.status().ToString();
  EXPECT_EQ(int8->kv_bytes_per_token, 536u);
  EXPECT_EQ(facts->attention_layers + facts->recurrent_layers, facts->layer_count);
  EXPECT_FALSE(facts->trimmable);
  const auto model = LoadModel(*file);
  ASSERT_TRUE(model.ok()) << model.status().ToString();
  EXPECT_EQ((*model)->layout().state_bytes(), facts->state_bytes);
  EXPECT_EQ((*model)->layout().buffer_bytes(), facts->checkpoint_bytes);
  EXPECT_EQ((*model)->info().parameter_count, facts->parameter_count);
  EXPECT_EQ((*model)->info().quantization, facts->quantization);
}

}  // namespace
}  // namespace cairn
