// A model as its files give it: typed metadata, named tensors. GGUF files and Hugging Face
// directories both look like this, with the keys, tensor names and conventions of GGUF, so an
// architecture reads either without knowing which.
//
// Owns: what the views handed out point to; they live as long as the file. Threads: immutable once
// open; any thread may read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "kernels/weight_type.h"
#include "model/gguf_types.h"

namespace cairn {

class TensorSource;

// A tensor, without its data.
struct TensorInfo {
  std::string name;
  std::vector<int64_t> shape;      // slowest first: a matrix W is {n, k}
  std::optional<WeightType> type;  // nullopt: a type without kernels
  std::string type_name;           // "Q4_K", "BF16"
  uint64_t bytes = 0;              // in the file

  int64_t element_count() const;  // product of shape
};

// What a Hugging Face directory says of text; a GGUF file has tokenizer.* keys instead.
struct HuggingFaceText {
  std::string tokenizer_json;
  std::string tiktoken_model;         // read if there is no tokenizer.json
  std::string tokenizer_config_json;  // empty: none
  std::string chat_template;          // empty: none
  std::vector<int64_t> end_tokens;    // eos_token_id of generation_config.json and config.json
  // Defaults of generation_config.json; none where it says do_sample false.
  std::optional<double> temperature, top_p, top_k, min_p;
};

class ModelFile {
 public:
  virtual ~ModelFile() = default;

  const std::string& path() const { return path_; }                // "" if it never had one
  virtual uint64_t size_bytes() const = 0;                         // of all its files
  virtual const HuggingFaceText* text() const { return nullptr; }  // null: tokenizer.* keys

  // Metadata. Get...: the key is required. Find...: nullopt if it is absent. Both fail if the key
  // is there with another type. ...Or: the fallback if it is absent.
  bool Has(std::string_view key) const;
  Result<uint64_t> GetU64(std::string_view key) const;  // any integer type, not negative
  Result<int64_t> GetI64(std::string_view key) const;   // any integer type
  Result<float> GetF32(std::string_view key) const;     // float32 or float64
  Result<bool> GetBool(std::string_view key) const;
  Result<std::string_view> GetString(std::string_view key) const;
  Result<std::optional<uint64_t>> FindU64(std::string_view key) const;
  Result<std::optional<int64_t>> FindI64(std::string_view key) const;
  Result<std::optional<float>> FindF32(std::string_view key) const;
  Result<std::optional<bool>> FindBool(std::string_view key) const;
  Result<std::optional<std::string_view>> FindString(std::string_view key) const;
  Result<uint64_t> GetU64Or(std::string_view key, uint64_t fallback) const;
  Result<float> GetF32Or(std::string_view key, float fallback) const;
  Result<bool> GetBoolOr(std::string_view key, bool fallback) const;
  // Arrays of any integer type (or bool), of floats, of strings.
  Result<std::vector<int64_t>> GetI64Array(std::string_view key) const;
  Result<std::vector<float>> GetF32Array(std::string_view key) const;
  Result<std::vector<std::string_view>> GetStringArray(std::string_view key) const;
  // Elements of an array; nullopt if the key is absent or is no array.
  std::optional<uint64_t> ArraySize(std::string_view key) const;

  struct Entry {
    std::string_view key;
    GgufValueType type;
    GgufValueType element_type;        // of an array
    uint64_t count = 0;                // of an array
    std::span<const std::byte> bytes;  // value in file encoding (a string without its length)
  };
  std::span<const Entry> entries() const { return entries_; }  // in file order
  // A value for people: "32768", "\"qwen35\"", "[string x 151936]"; at most ~80 bytes.
  static std::string Describe(const Entry& entry);

  // Tensors, under their GGUF names.
  virtual bool HasTensor(std::string_view name) const = 0;
  // Slowest dimension first. Errors: NotFound.
  virtual Result<std::vector<int64_t>> TensorShape(std::string_view name) const = 0;
  virtual std::vector<TensorInfo> ListTensors() const = 0;
  // Their data. The file must outlive the result.
  virtual std::unique_ptr<TensorSource> OpenTensors() const = 0;

 protected:
  // `format` begins the messages: "gguf".
  explicit ModelFile(const char* format) : format_(format) {}
  ModelFile(ModelFile&&) = default;
  ModelFile& operator=(ModelFile&&) = default;

  // To be called when entries_ is complete. Errors: DataLoss if a key occurs twice.
  Status IndexEntries();

  std::string path_;
  std::vector<Entry> entries_;

 private:
  const char* format_;
  const Entry* FindEntry(std::string_view key) const;
  Result<const Entry*> GetArray(std::string_view key) const;

  std::vector<uint32_t> entry_order_;  // indices of entries_, sorted by key
};

}  // namespace cairn
