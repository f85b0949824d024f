// A Hugging Face or MLX model directory as a ModelFile: config.json, safetensors shards,
// tokenizer.json and what lies beside them.
//
// Owns: mappings, texts and synthesised metadata. Threads: immutable after Open.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/hf/hf_builder.h"
#include "model/hf/hf_files.h"
#include "model/model_file.h"

namespace cairn {

class HfDirectory final : public ModelFile {
 public:
  // `path`: the directory, or a repository in the Hugging Face cache. Errors: NotFound naming the
  // missing part, DataLoss (broken), Unsupported (model type, quantisation; the message lists those
  // this version knows).
  static Result<std::unique_ptr<HfDirectory>> Open(const std::string& path);

  uint64_t size_bytes() const override { return shards_.size_bytes(); }
  const HuggingFaceText* text() const override { return &text_; }
  bool HasTensor(std::string_view name) const override { return recipes_.contains(name); }
  Result<std::vector<int64_t>> TensorShape(std::string_view name) const override;
  std::vector<TensorInfo> ListTensors() const override;
  std::unique_ptr<TensorSource> OpenTensors() const override;

  const HfShards& shards() const { return shards_; }
  const HfRecipe* FindRecipe(std::string_view name) const;

 private:
  HfDirectory() : ModelFile("hf") {}
  Status Build(const JsonValue& config);

  HfShards shards_;
  HuggingFaceText text_;
  std::deque<HfBuilder::Entry> owned_entries_;
  std::map<std::string, HfSource, std::less<>> sources_;
  std::map<std::string, HfRecipe, std::less<>> recipes_;
  std::vector<const SafetensorsTensor*> unused_;  // neither asked for nor known as other parts
};

}  // namespace cairn
