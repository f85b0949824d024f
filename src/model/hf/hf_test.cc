// Hugging Face directories: what they are made of, and what is said of broken ones.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "model/hf/exp_double.h"
#include "model/hf/hf_directory.h"
#include "model/hf/hf_quantization.h"
#include "model/hf/hf_testing.h"
#include "model/hf/json.h"
#include "model/hf/safetensors.h"
#include "model/load.h"
#include "model/open_model.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;

using testing::CopyFiles;
using testing::kData;
using testing::OpenAndLoad;
using testing::ReadAll;
using testing::Replace;
using testing::ReplaceInHeader;
using testing::TempDirectory;
using testing::WithHeader;
using testing::WriteAll;

constexpr char kFirst[] = "model-00001-of-00002.safetensors";
constexpr char kSecond[] = "model-00002-of-00002.safetensors";
constexpr char kIndex[] = "model.safetensors.index.json";
constexpr char kNorm[] = "\"model.layers.0.input_layernorm.weight\"";

struct Breakage {
  const char* name;
  void (*apply)(const std::string& directory);
  StatusCode code;
  const char* message;  // part of it
};

const Breakage kMissing[] = {
    {"Config", [](const std::string& d) { fs::remove(d + "/config.json"); }, StatusCode::kNotFound,
     "config.json is missing"},
    {"Tokenizer", [](const std::string& d) { fs::remove(d + "/tokenizer.json"); },
     StatusCode::kNotFound, "tokenizer.json is missing"},
    {"Shard", [](const std::string& d) { fs::remove(d + "/" + kSecond); }, StatusCode::kNotFound,
     "shard 'model-00002-of-00002.safetensors' is missing"},
    {"Index", [](const std::string& d) { fs::remove(d + "/" + kIndex); }, StatusCode::kNotFound,
     "model.safetensors.index.json is missing"},
    {"Weights",
     [](const std::string& d) {
       for (const char* name : {kFirst, kSecond, kIndex}) fs::remove(d + "/" + name);
     },
     StatusCode::kNotFound, "model.safetensors is missing"},
};

const Breakage kBrokenShards[] = {
    {"HeaderLongerThanTheFile",
     [](const std::string& d) {
       const std::string file = ReadAll(d + "/" + kFirst);
       WriteAll(d + "/" + kFirst, std::string("\0\0\0\0\0\1\0\0", 8) + file.substr(8));
     },
     StatusCode::kDataLoss, "header length: got 1099511627776, wanted at most"},
    {"Truncated",
     [](const std::string& d) {
       const std::string file = ReadAll(d + "/" + kFirst);
       WriteAll(d + "/" + kFirst, file.substr(0, file.size() - 1000));
     },
     StatusCode::kDataLoss, "bytes of data"},
    {"Empty", [](const std::string& d) { WriteAll(d + "/" + kFirst, ""); }, StatusCode::kDataLoss,
     "is empty"},
    {"TooLong",
     [](const std::string& d) { WriteAll(d + "/" + kFirst, ReadAll(d + "/" + kFirst) + "tail"); },
     StatusCode::kDataLoss, "bytes after the header, wanted"},
    {"NoJson", [](const std::string& d) { ReplaceInHeader(d + "/" + kFirst, "", "{", "["); },
     StatusCode::kDataLoss, "wanted a JSON object"},
    {"DtypeOfAnotherSize",
     [](const std::string& d) { ReplaceInHeader(d + "/" + kFirst, kNorm, "F32", "BF16"); },
     StatusCode::kDataLoss, "input_layernorm.weight': got 256 bytes, wanted 128"},
    {"UnknownDtype",
     [](const std::string& d) { ReplaceInHeader(d + "/" + kFirst, kNorm, "F32", "F33"); },
     StatusCode::kUnsupported, "got dtype 'F33', wanted one of F64, F32"},
    {"IntegersForWeights",
     [](const std::string& d) { ReplaceInHeader(d + "/" + kFirst, kNorm, "F32", "I32"); },
     StatusCode::kUnsupported, "got dtype I32, wanted F32, F16 or BF16"},
    {"ShapeOfAnotherSize",
     [](const std::string& d) { ReplaceInHeader(d + "/" + kFirst, kNorm, "[64]", "[65]"); },
     StatusCode::kDataLoss, "got 256 bytes, wanted 260"},
    {"ShapeThatOverflows",
     [](const std::string& d) {
       ReplaceInHeader(d + "/" + kFirst, kNorm, "[64]", "[4611686018427387904,16]");
     },
     StatusCode::kDataLoss, "wanted more than 2^63"},
    {"ShapeThatOverflowsBeforeItsZero",
     [](const std::string& d) {
       ReplaceInHeader(d + "/" + kFirst, kNorm, "[64]", "[1152921504606846976,2,0]");
     },
     StatusCode::kDataLoss, "wanted more than 2^63"},
    {"NegativeSize",
     [](const std::string& d) { ReplaceInHeader(d + "/" + kFirst, kNorm, "[64]", "[-64]"); },
     StatusCode::kDataLoss, "got -64 in the shape, wanted sizes >= 0"},
    {"NanSize",
     [](const std::string& d) { ReplaceInHeader(d + "/" + kFirst, kNorm, "[64]", "[NaN]"); },
     StatusCode::kDataLoss, "in the shape, wanted sizes >= 0"},
    {"ShapeOfTheSameSize",
     [](const std::string& d) {
       ReplaceInHeader(d + "/" + kFirst, "\"model.layers.0.mamba.in_proj.weight\"", "[296,64]",
                       "[64,296]");
     },
     StatusCode::kInvalidArgument,
     "ssm_in.weight': got shape [64, 296], wanted [296, 64]; it is made of 'model.layers.0.mamba"},
    {"TensorTwiceInAHeader",
     [](const std::string& d) {
       ReplaceInHeader(d + "/" + kFirst, "\"model.layers.0.post_attention_layernorm.weight\"",
                       "model.layers.0.post_attention", "model.layers.0.input");
     },
     StatusCode::kDataLoss, "'model.layers.0.input_layernorm.weight' twice"},
    {"TensorTwiceInShards",
     [](const std::string& d) {
       ReplaceInHeader(d + "/" + kSecond, "\"model.layers.3.input_layernorm.weight\"",
                       "model.layers.3.input_layernorm.weight",
                       "model.layers.0.input_layernorm.weight");
     },
     StatusCode::kDataLoss, "got it twice, in shards"},
};

// Offsets are rewritten by the test: they depend on the tensor's place.
Status WithOffsets(const std::string& directory, int64_t shift_begin, int64_t shift_end) {
  const std::string path = directory + "/" + kFirst;
  const std::string file = ReadAll(path);
  const size_t entry = file.find(kNorm);
  const size_t at = file.find("\"data_offsets\":[", entry) + 16;
  size_t used = 0;
  const int64_t begin = std::stoll(file.substr(at), &used);
  const int64_t end = std::stoll(file.substr(at + used + 1));
  const std::string old_text = std::to_string(begin) + "," + std::to_string(end);
  const std::string new_text =
      std::to_string(begin + shift_begin) + "," + std::to_string(end + shift_end);
  ReplaceInHeader(path, kNorm, old_text, new_text);
  return OpenAndLoad(directory);
}

const Breakage kBrokenTexts[] = {
    {"IndexNamesAnAbsentTensor",
     [](const std::string& d) {
       Replace(d + "/" + kIndex, "weight_map", "model.norm.weight", "model.norm2.weight");
     },
     StatusCode::kDataLoss, "tensor 'model.norm2.weight' is not in shard"},
    {"IndexNamesAnotherShard",
     [](const std::string& d) { Replace(d + "/" + kIndex, kNorm, kFirst, kSecond); },
     StatusCode::kDataLoss, "but in 'model-00001-of-00002.safetensors'"},
    {"IndexLeavesATensorOut",
     [](const std::string& d) {
       ReplaceInHeader(d + "/" + kFirst, "", "{",
                       "{\"model.more\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]},");
     },
     StatusCode::kDataLoss, "got no entry for tensor 'model.more'"},
    {"IndexPointsOutOfTheDirectory",
     [](const std::string& d) {
       Replace(d + "/" + kIndex, kNorm, kFirst, "../" + std::string(kFirst));
     },
     StatusCode::kDataLoss, "wanted a file name"},
    {"IndexWithoutMap",
     [](const std::string& d) { WriteAll(d + "/" + kIndex, "{\"metadata\": {}}"); },
     StatusCode::kDataLoss, "got no weight_map"},
    {"IndexIsNoJson", [](const std::string& d) { WriteAll(d + "/" + kIndex, "{\"a\": 1"); },
     StatusCode::kDataLoss, "model.safetensors.index.json: no '}'"},
    {"ConfigIsNoJson", [](const std::string& d) { WriteAll(d + "/config.json", "{,}"); },
     StatusCode::kDataLoss, "config.json: no key"},
    {"DeepConfig",
     [](const std::string& d) { WriteAll(d + "/config.json", std::string(1 << 20, '[')); },
     StatusCode::kResourceExhausted, "nested deeper than"},
    {"UnknownModelType",
     [](const std::string& d) {
       Replace(d + "/config.json", "\"model_type\"", "granitemoehybrid", "granitemoehybrid9");
     },
     StatusCode::kUnsupported, "unknown model_type 'granitemoehybrid9'; this version knows llama"},
    {"NoModelType", [](const std::string& d) { WriteAll(d + "/config.json", "{}"); },
     StatusCode::kDataLoss, "got no model_type"},
    {"ConfigWithoutASize",
     [](const std::string& d) {
       Replace(d + "/config.json", "", "\"hidden_size\"", "\"hidden_sizes\"");
     },
     StatusCode::kDataLoss, "got no value as hidden_size, wanted an integer"},
    {"ConfigOfAnotherType",
     [](const std::string& d) {
       Replace(d + "/config.json", "", "\"hidden_size\": 64", "\"hidden_size\": \"64\"");
     },
     StatusCode::kDataLoss, "got '64' as hidden_size, wanted an integer"},
    {"ConfigDisagreesWithTensors",
     [](const std::string& d) {
       Replace(d + "/config.json", "", "\"hidden_size\": 64", "\"hidden_size\": 128");
     },
     StatusCode::kInvalidArgument, "got shape [320, 64], wanted [320, 128]"},
    {"MoreLayersThanTensors",
     [](const std::string& d) {
       Replace(d + "/config.json", "", "\"num_hidden_layers\": 6", "\"num_hidden_layers\": 7");
     },
     StatusCode::kDataLoss, "layer_types"},
    {"QuantisedByAnother",
     [](const std::string& d) {
       Replace(d + "/config.json", "", "{",
               "{\"quantization_config\": {\"quant_method\": \"gptq\"},");
     },
     StatusCode::kUnsupported,
     "quantisation 'gptq' is not in this version; this version knows F32"},
    {"GenerationConfigIsNoJson",
     [](const std::string& d) { WriteAll(d + "/generation_config.json", "{\"top_p\": }"); },
     StatusCode::kDataLoss, "generation_config.json: no value"},
};

void ExpectRefused(const Breakage& breakage) {
  SCOPED_TRACE(breakage.name);
  TempDirectory temp;
  CopyFiles(kData + "granite-h/hf", temp.path());
  breakage.apply(temp.path());
  const Status status = OpenAndLoad(temp.path());
  EXPECT_EQ(status.code(), breakage.code) << status.ToString();
  EXPECT_NE(status.message().find(breakage.message), std::string::npos) << status.ToString();
}

TEST(HfBroken, AMissingPartIsNamed) {
  for (const Breakage& b : kMissing) ExpectRefused(b);
}

TEST(HfBroken, ABrokenShardIsRefused) {
  for (const Breakage& b : kBrokenShards) ExpectRefused(b);
}

TEST(HfBroken, BrokenTextsAreRefused) {
  for (const Breakage& b : kBrokenTexts) ExpectRefused(b);
}

TEST(HfBroken, TensorsFillTheFileWithoutGapOrOverlap) {
  TempDirectory temp;
  CopyFiles(kData + "granite-h/hf", temp.path());
  const Status overlap = WithOffsets(temp.path(), -4, -4);
  EXPECT_EQ(overlap.code(), StatusCode::kDataLoss);
  EXPECT_NE(overlap.message().find("it overlaps another"), std::string::npos) << overlap.message();
  const Status gap = WithOffsets(temp.path(), 8, 8);  // 4 beyond its own place
  EXPECT_EQ(gap.code(), StatusCode::kDataLoss);
  EXPECT_NE(gap.message().find("there is a gap"), std::string::npos) << gap.message();
  const Status beyond = WithOffsets(temp.path(), 1 << 30, 1 << 30);
  EXPECT_NE(beyond.message().find("wanted data_offsets [begin, end] within"), std::string::npos)
      << beyond.message();
}

// Every header cut short, and every byte of it changed to something else, is opened or refused.
TEST(HfBroken, DamagedHeadersNeverCrash) {
  const std::string file = ReadAll(kData + "mamba2/hf/model.safetensors");
  ASSERT_GT(file.size(), 8u);
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);
  for (uint64_t at = 0; at < length + 8; at += 3) {
    std::string damaged = file;
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << at % 7));
    (void)SafetensorsFile::FromBytes(std::as_bytes(std::span(damaged)));
    EXPECT_FALSE(SafetensorsFile::FromBytes(std::as_bytes(std::span(file)).first(at)).ok());
  }
}

TEST(HfDirectory, ATensorWithoutPlaceIsRefused) {
  TempDirectory temp;
  CopyFiles(kData + "llama-a/hf", temp.path());
  ReplaceInHeader(temp.path() + "/model.safetensors", "", "{",
                  "{\"model.layers.0.extra.weight\":{\"dtype\":\"F32\",\"shape\":[0],"
                  "\"data_offsets\":[0,0]},");
  const Status status = OpenAndLoad(temp.path());
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("model.layers.0.extra.weight has no place"), std::string::npos)
      << status.message();
}

TEST(HfDirectory, VisionAndDraftTensorsAreSkipped) {
  TempDirectory temp;
  CopyFiles(kData + "qwen35-a/hf", temp.path());
  ReplaceInHeader(
      temp.path() + "/model.safetensors", "", "{",
      "{\"model.visual.patch.weight\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]},"
      "\"mtp.norm.weight\":{\"dtype\":\"F8_E4M3\",\"shape\":[0],\"data_offsets\":[0,0]},");
  EXPECT_TRUE(OpenAndLoad(temp.path()).ok());
}

TEST(HfDirectory, ACacheRepositoryLeadsToItsSnapshot) {
  TempDirectory temp;
  const std::string repo = temp.path() + "/models--org--tiny";
  CopyFiles(kData + "llama-a/hf", repo + "/snapshots/abc123");
  fs::create_directories(repo + "/refs");
  WriteAll(repo + "/refs/main", "abc123\n");
  const auto file = OpenModelFile(repo);
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_EQ((*file)->path(), repo + "/snapshots/abc123");
  EXPECT_EQ((*file)->GetString("general.name").value(), "tiny");
  WriteAll(repo + "/refs/main", "../../x");
  EXPECT_EQ(OpenModelFile(repo).status().code(), StatusCode::kDataLoss);
  WriteAll(repo + "/refs/main", "def456");
  EXPECT_NE(OpenModelFile(repo).status().message().find("'def456'"), std::string::npos);
  fs::remove(repo + "/refs/main");
  EXPECT_TRUE(OpenModelFile(repo).ok());  // there is only one
}

TEST(HfDirectory, TheDirectoryOneStandsInHasItsRealName) {
  TempDirectory temp;
  const std::string directory = temp.path() + "/my-model";
  CopyFiles(kData + "llama-a/hf", directory);
  const fs::path before = fs::current_path();
  for (const auto& [from, path] :
       {std::pair(directory, "."), {directory, "./"}, {temp.path(), "my-model/"}}) {
    fs::current_path(from);
    const auto file = OpenModelFile(path);
    fs::current_path(before);
    ASSERT_TRUE(file.ok()) << file.status().ToString();
    EXPECT_EQ((*file)->GetString("general.name").value(), "my-model") << path;
  }
}

TEST(HfDirectory, ReadsWhatTheTextSideNeeds) {
  TempDirectory temp;
  CopyFiles(kData + "llama-a/hf", temp.path());
  WriteAll(temp.path() + "/generation_config.json",
           "{\"eos_token_id\": [5, 317], \"temperature\": 0.6, \"top_k\": 20, \"top_p\": 0.95, "
           "\"do_sample\": true}");
  {
    const auto file = OpenModelFile(temp.path());
    ASSERT_TRUE(file.ok()) << file.status().ToString();
    const HuggingFaceText& text = *(*file)->text();
    EXPECT_EQ(text.end_tokens, (std::vector<int64_t>{5, 317}));
    EXPECT_EQ(text.temperature, 0.6);
    EXPECT_EQ(text.top_k, 20);
    EXPECT_EQ(text.top_p, 0.95);
    EXPECT_FALSE(text.min_p.has_value());
    EXPECT_NE(text.chat_template.find("<|im_start|>"), std::string::npos);
    EXPECT_TRUE(text.tokenizer_json.starts_with("{"));
  }
  WriteAll(temp.path() + "/tokenizer_config.json",
           "{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"T\"}, "
           "{\"name\": \"default\", \"template\": \"D\"}]}");
  EXPECT_EQ((*OpenModelFile(temp.path()))->text()->chat_template, "D");
  WriteAll(temp.path() + "/chat_template.jinja", "J");
  EXPECT_EQ((*OpenModelFile(temp.path()))->text()->chat_template, "J");
  WriteAll(temp.path() + "/tiktoken.model", "IQ== 0\n");
  EXPECT_EQ((*OpenModelFile(temp.path()))->text()->tiktoken_model, "");
  fs::remove(temp.path() + "/tokenizer.json");
  EXPECT_EQ((*OpenModelFile(temp.path()))->text()->tiktoken_model, "IQ== 0\n");
}

TEST(HfDirectory, KeysThatTheModelsCodeAssumesMayBeLeftOut) {
  TempDirectory temp;
  CopyFiles(kData + "gemma3/hf", temp.path());
  Replace(temp.path() + "/config.json", "", "\"max_position_embeddings\": 4096,", "");
  Replace(temp.path() + "/config.json", "", "\"tie_word_embeddings\": true,", "");
  const auto file = OpenModelFile(temp.path());
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_EQ((*file)->GetI64("gemma3.context_length").value(), 131072);
  EXPECT_FALSE((*file)->HasTensor("output.weight"));
}

TEST(HfDirectory, SmolLm3SaysWhichLayersHavePositions) {
  using Layers = std::vector<int64_t>;
  const auto rotary = [](const std::string& keys) -> Result<Layers> {
    TempDirectory temp;
    CopyFiles(kData + "llama-a/hf", temp.path());
    Replace(temp.path() + "/config.json", "", "\"llama\"", "\"smollm3\"" + keys);
    RETURN_IF_ERROR(OpenAndLoad(temp.path()));
    return (*OpenModelFile(temp.path()))->GetI64Array("smollm3.rope.rotary_layers");
  };
  EXPECT_EQ(rotary("").value(), (Layers{1, 1, 1, 0}));
  EXPECT_EQ(rotary(", \"no_rope_layers\": null").value(), (Layers{1, 1, 1, 0}));
  EXPECT_EQ(rotary(", \"no_rope_layer_interval\": 2").value(), (Layers{1, 0, 1, 0}));
  EXPECT_EQ(rotary(", \"no_rope_layers\": [0, 1, 1, 0]").value(), (Layers{0, 1, 1, 0}));
  for (const char* broken : {"[0, 1, 1]", "[]", "5", "[0, 1, 1, 2]", "[0, 1, 1, true]"}) {
    const Status status = rotary(", \"no_rope_layers\": " + std::string(broken)).status();
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << broken << ": " << status.ToString();
  }
}

TEST(HfDirectory, AffineSettingsAreCheckedAndOverridden) {
  const auto config = ParseJson(
      R"({"quantization": {"group_size": 64, "bits": 4, "a.b": {"group_size": 32, "bits": 8},
          "a.c": {"group_size": 64, "bits": 3}, "a.d": {"group_size": 32, "bits": 4, "mode": "mxfp4"}}})",
      "config.json");
  ASSERT_TRUE(config.ok());
  EXPECT_TRUE(CheckQuantization(*config).ok());
  const AffineSettings common = ReadAffineSettings(*config, "a.a").value();
  EXPECT_EQ(common.bits, 4);
  EXPECT_EQ(common.group, 64);
  const AffineSettings own = ReadAffineSettings(*config, "a.b").value();
  EXPECT_EQ(own.bits, 8);
  EXPECT_EQ(own.group, 32);
  const Status three = ReadAffineSettings(*config, "a.c").status();
  EXPECT_EQ(three.code(), StatusCode::kUnsupported);
  EXPECT_NE(three.message().find("affine quantisation of 3 bits"), std::string::npos);
  EXPECT_NE(ReadAffineSettings(*config, "a.d").status().message().find("'mxfp4'"),
            std::string::npos);
}

TEST(Json, ReadsWhatPythonWrites) {
  const auto value = ParseJson(
      R"({"a": [1, -2, 3.5, 1e3, true, null], "b": "\u00e9\ud83d\ude00\n", "c": Infinity, "d": -Infinity})",
      "x");
  ASSERT_TRUE(value.ok()) << value.status().ToString();
  const auto& a = value->Find("a")->elements();
  EXPECT_EQ(a[0].AsInteger(), 1);
  EXPECT_EQ(a[1].AsInteger(), -2);
  EXPECT_EQ(a[2].AsNumber(), 3.5);
  EXPECT_EQ(a[3].AsInteger(), 1000);
  EXPECT_FALSE(a[2].AsInteger().has_value());
  EXPECT_EQ(a[4].AsBool(), true);
  EXPECT_TRUE(a[5].is_null());
  EXPECT_EQ(value->Find("b")->AsString(), "\xc3\xa9\xf0\x9f\x98\x80\n");
  EXPECT_GT(*value->Find("c")->AsNumber(), 1e300);
  EXPECT_LT(*value->Find("d")->AsNumber(), -1e300);
  for (const char* broken :
       {"", "{", "[1,]", "{\"a\" 1}", "{\"a\": 1, \"a\": 2}", "01", "1.", "-", "+1", "\"\\x\"",
        "\"\\ud800\"", "\"a", "tru", "1 2", "[1e999]", "{\"a\": .5}", "\"\t\""}) {
    EXPECT_FALSE(ParseJson(broken, "x").ok()) << broken;
  }
}

TEST(ExpDouble, IsExpToAHundredthOfAFloatUlp) {
  for (double x = -30; x < 30; x += 0.37) {
    EXPECT_NEAR(ExpDouble(x) / std::exp(x), 1.0, 1e-14) << x;
  }
}

}  // namespace
}  // namespace cairn
