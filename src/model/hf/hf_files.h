// The files of a Hugging Face directory: where they lie, what they say, whether one is missing.
// Everything is opened and checked here; nothing of a model is understood.
//
// Owns: mappings and texts. Threads: immutable after Open.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/hf/json.h"
#include "model/hf/safetensors.h"
#include "model/model_file.h"

namespace cairn {

// The directory with config.json: `path` itself, or the snapshot that refs/main names where `path`
// is a repository of the Hugging Face cache (models--ORG--NAME). Errors: NotFound, DataLoss.
Result<std::string> ResolveHfDirectory(const std::string& path);

// All text of one file. Errors: NotFound, ResourceExhausted beyond `bytes_max`.
Result<std::string> ReadTextFile(const std::string& path, uint64_t bytes_max);

// The shards of a model, their tensors by name.
class HfShards {
 public:
  // model.safetensors.index.json and every shard it names, else model.safetensors, else the one
  // *.safetensors of the directory. Errors: NotFound naming the missing file, DataLoss (index and
  // shards disagree, a tensor twice), and those of SafetensorsFile.
  static Result<HfShards> Open(const std::string& directory);

  const SafetensorsTensor* Find(std::string_view name) const;  // null if absent
  const std::map<std::string_view, const SafetensorsTensor*>& tensors() const { return tensors_; }
  uint64_t size_bytes() const;  // of all shards
  // A hint that the pages under `bytes` are not needed soon.
  void ReleasePages(std::span<const std::byte> bytes) const;

 private:
  Status OpenShard(const std::string& directory, const std::string& name);
  Status CheckIndex(const JsonValue& weight_map) const;

  std::vector<std::string> names_;  // of the shards
  std::vector<SafetensorsFile> shards_;
  std::map<std::string_view, const SafetensorsTensor*> tensors_;
  std::map<std::string_view, size_t> shard_of_;
};

// tokenizer.json or tiktoken.model, tokenizer_config.json, chat_template.jinja, generation_config.json.
// `config` is config.json: ids of end tokens may stand there alone.
Result<HuggingFaceText> ReadHfText(const std::string& directory, const JsonValue& config);

}  // namespace cairn
