// config.json as its writers vary it: the same model under other names, by other means, with what
// the models' code assumes left out.
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/hf/hf_testing.h"
#include "model/open_model.h"

namespace cairn {
namespace {

using testing::CopyFiles;
using testing::kData;
using testing::OpenAndLoad;
using testing::ReadAll;
using testing::ReplaceInHeader;
using testing::TempDirectory;
using testing::WriteAll;

using Changes = std::vector<std::pair<std::string, std::string>>;

// Every occurrence; each change must find one.
void ChangeConfig(const std::string& directory, const Changes& changes) {
  const std::string path = directory + "/config.json";
  std::string text = ReadAll(path);
  for (const auto& [from, to] : changes) {
    size_t at = text.find(from), count = 0;
    for (; at != std::string::npos; at = text.find(from, at + to.size()), ++count)
      text.replace(at, from.size(), to);
    EXPECT_GT(count, 0u) << from;
  }
  WriteAll(path, text);
}

// All that a model's code reads of a directory but the weights' values.
std::map<std::string, std::string> Facts(const std::string& directory) {
  std::map<std::string, std::string> facts;
  const auto file = OpenModelFile(directory);
  EXPECT_TRUE(file.ok()) << file.status().ToString();
  if (!file.ok()) return facts;
  for (const ModelFile::Entry& entry : (*file)->entries()) {
    if (entry.key == "general.name") continue;
    facts[std::string(entry.key)] =
        ModelFile::Describe(entry) + " " +
        std::string(reinterpret_cast<const char*>(entry.bytes.data()), entry.bytes.size());
  }
  for (const TensorInfo& tensor : (*file)->ListTensors()) {
    std::string shape;
    for (const int64_t dim : tensor.shape) shape.append(" ").append(std::to_string(dim));
    facts["tensor " + tensor.name] = tensor.type_name + shape;
  }
  return facts;
}

struct Rewriting {
  const char* name;
  const char* model;
  Changes changes;
};
void PrintTo(const Rewriting& r, std::ostream* out) { *out << r.name; }

std::vector<Rewriting> MixerRewritings() {
  const Changes kNewNames = {{"\"mamba\"", "\"linear_attention\""},
                             {"\"attention\"", "\"full_attention\""}};
  return {
      {"GraniteLayerTypesOfTransformers5", "granite-h", kNewNames},
      {"GraniteExpertsLayerTypesOfTransformers5", "made/granitemoe-1", kNewNames},
      {"GraniteHeadsByTheInnerWidth",
       "granite-h",
       {{"\"mamba_d_head\": 16", "\"mamba_d_head\": \"auto\""}}},
      {"GraniteWithoutPositions",
       "granite-h",
       {{"\"position_embedding_type\": \"nope\"", "\"position_embedding_type\": null"}}},
      {"NemotronBlocksOfTransformers5",
       "nemotron-h",
       {{"\"num_hidden_layers\": 7,\n", "\"n_routed_experts\": 8, \"num_experts_per_tok\": 2,\n"},
        {"\"hybrid_override_pattern\": \"M-M*-M-\"",
         "\"layers_block_type\": [\"linear_attention\", \"mlp\", \"linear_attention\", "
         "\"full_attention\", \"mlp\", \"linear_attention\", \"mlp\"]"}}},
      {"NemotronBlocksByOlderNames",
       "nemotron-h",
       {{"\"hybrid_override_pattern\": \"M-M*-M-\"",
         "\"layers_block_type\": [\"mamba\", \"mlp\", \"mamba\", \"attention\", \"mlp\", "
         "\"mamba\", "
         "\"mlp\"]"}}},
      {"NemotronAttentionHeadDim",
       "nemotron-h",
       {{"\"head_dim\": 24", "\"attention_head_dim\": 24"}, {"\"conv_kernel\": 4,", ""}}},
      {"KimiSizesOfTransformers5",
       "kimi-linear",
       {{"\"linear_attn_config\": {",
         "\"linear_num_heads\": 4, \"linear_head_dim\": 16, "
         "\"linear_conv_kernel_dim\": 4, \"layer_types\": ["
         "\"linear_attention\", \"linear_attention\", "
         "\"full_attention\", \"linear_attention\"], \"unused\": {"},
        {"\"first_k_dense_replace\": 1",
         "\"mlp_layer_types\": [\"dense\", \"sparse\", \"sparse\", \"sparse\"]"},
        {"\"max_position_embeddings\": 4096,", ""}}},
  };
}

std::vector<Rewriting> OtherRewritings() {
  return {
      {"Lfm2ByIndices",
       "lfm2",
       {{"\"layer_types\"", "\"unused\""},
        {"\"norm_eps\": 1e-05,", ""},
        {"\"rope_theta\": 1000000.0,", ""},
        {"\"conv_L_cache\": 3,", ""},
        {"\"tie_word_embeddings\"", "\"tie_embedding\""}}},
      {"Qwen35ByLayerTypesAlone",
       "qwen35-a",
       {{"\"full_attention_interval\": 4,", ""},
        {"10000.0,\n   \"partial_rotary_factor\": 0.25", "10000.0"}}},
      {"Qwen35ByTheIntervalAlone", "qwen35-a", {{"\"layer_types\"", "\"unused\""}}},
      {"Qwen2MoeExpertsOfTransformers5",
       "made/qwen2moe-1",
       {{"\"num_experts\": 6", "\"num_local_experts\": 6"}, {"\"norm_topk_prob\": false,", ""}}},
      {"FalconHeadsByTheInnerWidth",
       "falcon-h1",
       {{"\"mamba_d_head\": 16", "\"mamba_d_head\": \"auto\""}, {"\"rms_norm_eps\": 1e-05,", ""}}},
      {"Mamba2WithoutWhatIsAssumed",
       "mamba2",
       {{"\"head_dim\": 64,", ""},
        {"\"state_size\": 128,", ""},
        {"\"conv_kernel\": 4,", ""},
        {"\"layer_norm_epsilon\": 1e-05,", ""}}},
      {"Gemma3ByLayerTypes",
       "gemma3",
       {{"\"sliding_window_pattern\": 6",
         "\"layer_types\": [\"sliding_attention\", \"sliding_attention\", \"sliding_attention\", "
         "\"sliding_attention\", \"sliding_attention\", \"full_attention\", "
         "\"sliding_attention\"]"}}},
      {"AffineLayersThatTheMapLeavesOut",
       "quant/llama-a/mlx4",
       {{"\"bits\": 4", "\"bits\": 8, \"model.x\": {\"group_size\": 64, \"bits\": 4}"}}},
  };
}

std::string DirectoryOf(const Rewriting& rewriting) {
  const std::string model = rewriting.model;
  return kData + model + (model.starts_with("quant/") ? "" : "/hf");
}

class ConfigRewriting : public ::testing::TestWithParam<Rewriting> {};

TEST_P(ConfigRewriting, IsTheSameModel) {
  TempDirectory temp;
  CopyFiles(DirectoryOf(GetParam()), temp.path());
  ChangeConfig(temp.path(), GetParam().changes);
  EXPECT_EQ(Facts(temp.path()), Facts(DirectoryOf(GetParam())));
  const Status status = OpenAndLoad(temp.path());
  EXPECT_TRUE(status.ok()) << status.ToString();
}

INSTANTIATE_TEST_SUITE_P(Mixers, ConfigRewriting, ::testing::ValuesIn(MixerRewritings()),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Others, ConfigRewriting, ::testing::ValuesIn(OtherRewritings()),
                         [](const auto& info) { return info.param.name; });

// Transformers leaves out of a text_config what equals its own class's defaults.
TEST(HfConfig, ATextConfigInsideAnotherMayLeaveOutItsSizes) {
  const auto wrapped = [](const char* type, const char* text) {
    TempDirectory temp;
    CopyFiles(kData + "llama-a/hf", temp.path());
    WriteAll(temp.path() + "/config.json", std::string("{\"model_type\": \"") + type +
                                               "\", \"text_config\": {\"model_type\": \"" + text +
                                               "\", \"vocab_size\": 320}}");
    return OpenModelFile(temp.path()).status();
  };
  // Sizes are there; the tensors, of course, are of another model.
  for (const auto& [type, text] : {std::pair("qwen3_5", "qwen3_5_text"),
                                   {"qwen3_5_moe", "qwen3_5_moe_text"},
                                   {"mistral3", "ministral3"},
                                   {"mistral3", "mistral"},
                                   {"lfm2_vl", "lfm2"}}) {
    const Status status = wrapped(type, text);
    EXPECT_EQ(status.code(), StatusCode::kNotFound) << text << ": " << status.ToString();
    EXPECT_NE(status.message().find("got none, wanted it in the shards"), std::string::npos)
        << status.message();
  }
}

TEST(HfConfig, LayersNeedNoPeriod) {
  TempDirectory temp;
  CopyFiles(kData + "gemma3/hf", temp.path());
  ChangeConfig(temp.path(),
               {{"\"sliding_window_pattern\": 6",
                 "\"layer_types\": [\"full_attention\", \"sliding_attention\", \"full_attention\", "
                 "\"sliding_attention\", \"sliding_attention\", \"full_attention\", "
                 "\"sliding_attention\"]"}});
  const auto file = OpenModelFile(temp.path());
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_EQ((*file)->GetI64Array("gemma3.attention.sliding_window_pattern").value(),
            (std::vector<int64_t>{0, 1, 0, 1, 1, 0, 1}));
  EXPECT_TRUE(OpenAndLoad(temp.path()).ok());
}

struct Refusal {
  const char* model;
  Changes changes;
  const char* message;
};

TEST(HfConfig, WhatMakesNoSenseIsRefusedByName) {
  const Refusal refusals[] = {
      {"qwen35-a",
       {{"\"full_attention_interval\": 4", "\"full_attention_interval\": 0"}},
       "got 0 as full_attention_interval"},
      {"qwen35-a",
       {{"\"linear_num_key_heads\": 2", "\"linear_num_key_heads\": 0"}},
       "got 0 as linear_num_key_heads"},
      {"qwen3-next",
       {{"\"linear_num_key_heads\": 2", "\"linear_num_key_heads\": 4611686018427387904"}},
       "as linear_num_key_heads, wanted 1 to 65536"},
      {"qwen35-a",
       {{"\"num_hidden_layers\": 5", "\"num_hidden_layers\": 4"}},
       "got 5 layer_types, wanted one for each of 4 layers"},
      {"llama-a",
       {{"\"vocab_size\": 320", "\"vocab_size\": 321"}},
       "'model.embed_tokens.weight': got 320 rows, wanted 321"},
      {"falcon-h1",
       {{"\"mamba_rms_norm\": false", "\"mamba_rms_norm\": true"}},
       "'model.layers.0.mamba.norm.weight': got none"},
      {"falcon-h1",
       {{"\"attention_bias\": false", "\"attention_bias\": true"}},
       "got true as attention_bias, wanted false"},
      {"qwen3",
       {{"\"attention_bias\": false", "\"attention_bias\": true"}},
       "'model.layers.0.self_attn.q_proj.bias': got none, wanted it (attention_bias)"},
      {"lfm2", {{"\"conv\",\n  \"conv\"", "\"conv\",\n  \"ring\""}}, "got layer type 'ring'"},
      {"lfm2",
       {{"\"layer_types\"", "\"unused\""}, {"  4\n", "  6\n"}},
       "got 6 in full_attn_idxs, wanted 0 to 5"},
      {"granite-h", {{"\"layer_types\"", "\"unused\""}}, "got no layer_types"},
      {"granite-h",
       {{"\"num_attention_heads\": 4", "\"num_attention_heads\": 9223372036854775807"}},
       "attention heads"},
      {"nemotron-h", {{"M-M*-M-", "M-M*-ME"}}, "with and without experts"},
      {"gemma3",
       {{"\"attention_bias\": false", "\"use_bidirectional_attention\": true"}},
       "as use_bidirectional_attention, wanted false"},
      {"quant/llama-a/mlx4", {{"\"bits\": 4", "\"bits\": 8"}}, "8 bits in groups of 64"},
  };
  for (const Refusal& refusal : refusals) {
    SCOPED_TRACE(refusal.message);
    TempDirectory temp;
    CopyFiles(DirectoryOf({"", refusal.model, {}}), temp.path());
    ChangeConfig(temp.path(), refusal.changes);
    const Status status = OpenAndLoad(temp.path());
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.message().find(refusal.message), std::string::npos) << status.ToString();
  }
}

TEST(HfConfig, StepsOfMamba2AreKeptWithinTheirLimits) {
  const auto limits = [](const std::string& value) -> Result<std::vector<float>> {
    TempDirectory temp;
    CopyFiles(kData + "mamba2/hf", temp.path());
    ChangeConfig(temp.path(), {{"\"time_step_limit\": [\n  0.0,\n  1e+30\n ]",
                                "\"time_step_limit\": " + value}});
    RETURN_IF_ERROR(OpenAndLoad(temp.path()));
    const auto file = OpenModelFile(temp.path());
    const std::string key = "mamba2.ssm.time_step_limit";
    return (*file)->Has(key) ? (*file)->GetF32Array(key) : std::vector<float>();
  };
  using Limits = std::vector<float>;
  EXPECT_EQ(limits("[0.0, Infinity]").value(), Limits());
  EXPECT_EQ(limits("[0.0, {\"__float__\": \"Infinity\"}]").value(), Limits());
  EXPECT_EQ(limits("[0.0, {\"__float__\": Infinity}]").value(), Limits());
  EXPECT_EQ(limits("null").value(), Limits());
  EXPECT_EQ(limits("[0.25, 0.5]").value(), (Limits{0.25f, 0.5f}));
  for (const char* broken : {"[]", "[0.1]", "[0.2, 0.1]", "[-1, 2]", "[NaN, 1]", "3"}) {
    const Status status = limits(broken).status();
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << broken << ": " << status.ToString();
  }
}

TEST(HfConfig, AContextWithinASlidingWindowNeedsNone) {
  TempDirectory temp;
  CopyFiles(kData + "made/mistral3-1/hf", temp.path());
  ChangeConfig(temp.path(), {{"\"hidden_act\"", "\"sliding_window\": 96, \"hidden_act\""}});
  const auto file = OpenModelFile(temp.path());
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  const auto load = [&](std::optional<int64_t> context) {
    return LoadModel(**file, {.kv_type = KvType::kF16, .context_length = context, .progress = {}})
        .status();
  };
  EXPECT_TRUE(load(96).ok()) << load(96).ToString();
  for (const std::optional<int64_t> context : {std::optional<int64_t>(97), {}}) {
    EXPECT_EQ(load(context).code(), StatusCode::kUnsupported);
    EXPECT_NE(load(context).message().find("wanted --context-length 96 or less"),
              std::string::npos);
  }
}

TEST(HfConfig, DraftTensorsOfAnyPrefixAreSkipped) {
  TempDirectory temp;
  CopyFiles(kData + "qwen35-a/hf", temp.path());
  ReplaceInHeader(temp.path() + "/model.safetensors", "", "{",
                  "{\"language_model.mtp.layers.0.norm.weight\":{\"dtype\":\"F32\",\"shape\":[0],"
                  "\"data_offsets\":[0,0]},");
  const Status status = OpenAndLoad(temp.path());
  EXPECT_TRUE(status.ok()) << status.ToString();
}

}  // namespace
}  // namespace cairn
