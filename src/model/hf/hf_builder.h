// What an adapter (one file per model type) works with: it reads config.json, sets the metadata
// keys of GGUF, and says which tensors of the directory become which tensors of GGUF.
//
// Threads: used by one.
#pragma once

#include <cstdint>
#include <deque>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/hf/hf_tensors.h"
#include "model/hf/json.h"

namespace cairn {

class HfBuilder {
 public:
  // `config` is all of config.json; a text_config inside it is asked first.
  HfBuilder(const JsonValue& config, const HfShards& shards, std::string architecture);

  // What the model's code assumes for keys that config.json leaves out. REQUIRES: a JSON object.
  void SetDefaults(std::string_view json);

  // True for a text_config inside another model's. Transformers leaves out of it what it assumes,
  // where a config of its own says all.
  bool is_wrapped() const { return text_config_ != nullptr; }

  // --- config.json. A key whose value is null counts as absent.
  const JsonValue* Find(std::string_view key) const;
  Result<int64_t> Integer(std::string_view key) const;
  Result<int64_t> IntegerOr(std::string_view key, int64_t fallback) const;
  Result<double> Number(std::string_view key) const;
  Result<double> NumberOr(std::string_view key, double fallback) const;
  Result<bool> BoolOr(std::string_view key, bool fallback) const;
  Result<std::string> StringOr(std::string_view key, std::string_view fallback) const;
  Result<std::vector<std::string>> Strings(std::string_view key) const;  // empty if absent
  // Unsupported unless the key is absent or has this value.
  Status Demand(std::string_view key, const char* value) const;
  Status Demand(std::string_view key, bool value) const;

  // --- Metadata: ARCHITECTURE.key.
  const std::string& architecture() const { return architecture_; }
  void Set(std::string_view key, int64_t value);
  void SetFloat(std::string_view key, double value);
  void SetBool(std::string_view key, bool value);
  void SetString(std::string_view key, std::string_view value);
  void SetIntegers(std::string_view key, const std::vector<int64_t>& values);
  void SetFloats(std::string_view key, const std::vector<float>& values);

  // --- Tensors of the directory; names are relative to the root, absolute with a leading '/'.
  // The root is the first of these that has `probe`. Errors: DataLoss if none has.
  Status SetRoot(std::initializer_list<std::string_view> roots, std::string_view probe);
  std::string Absolute(std::string_view name) const;
  bool Has(std::string_view name) const;
  Result<const HfSource*> Source(std::string_view name);
  // The tensors of a plain RMSNorm computed as 1 + w are stored so; MLX directories of some
  // families have the 1 added already: their convolutions are [C, K, 1].
  bool IsMlxLayout(std::string_view conv_name) const;

  // --- Tensors of the model, under GGUF names.
  Status Map(const std::string& to, std::string_view from, HfValue value = HfValue::kAsIs);
  // BASE.weight, and BASE.bias if there is one.
  Status MapLinear(const std::string& to, const std::string& from);
  // The same, with the rows of each head reordered so that a rotary pair lies side by side: new
  // row 2 i + s of a head is old row s d / 2 + i.
  Status MapPairs(const std::string& to, const std::string& from, int64_t heads);
  // Rows of BASE.weight (and .bias) [begin, begin + count).
  Status MapSlice(const std::string& to, const std::string& from, int64_t begin, int64_t count);
  // Any gathering; all sources share type and k. Empty shape: {rows, k}, or {rows} for vectors.
  Status MapRuns(const std::string& to, std::vector<HfRun> runs, std::vector<int64_t> shape = {});
  // Float rows [heads * d, k] of which those [begin, begin + count) of each head's d are taken, as
  // columns: [heads, k, count].
  Status MapHeadsTransposed(const std::string& to, std::string_view from, int64_t heads,
                            int64_t begin, int64_t count);
  void MapConstant(const std::string& to, std::vector<float> values);
  // Tensors whose name begins with, or contains, this are not part of the text model.
  void SkipPrefix(std::string prefix) { skipped_prefixes_.push_back(std::move(prefix)); }
  void SkipContaining(std::string part) { skipped_parts_.push_back(std::move(part)); }

  // What the directory holds when all is said.
  struct Entry {
    std::string key;
    GgufValueType type;
    GgufValueType element_type = GgufValueType::kU8;
    uint64_t count = 0;
    std::string bytes;
  };
  std::deque<Entry> TakeEntries() { return std::move(entries_); }
  std::map<std::string, HfRecipe, std::less<>> TakeRecipes() { return std::move(recipes_); }
  // Of the directory, neither used nor skipped.
  std::vector<const SafetensorsTensor*> Unused() const;
  // Keeps the sources alive that recipes point to.
  std::map<std::string, HfSource, std::less<>> TakeSources() { return std::move(sources_); }

 private:
  Result<HfSource> MakeSource(const std::string& name);
  Result<HfSource> MakeAffine(const std::string& base, const SafetensorsTensor& weight);
  void AddEntry(std::string_view key, GgufValueType type, std::string bytes);
  Status AddRecipe(const std::string& to, HfRecipe recipe);

  const JsonValue& config_;
  const JsonValue* text_config_;  // null if there is none
  JsonValue defaults_;
  const HfShards& shards_;
  const std::string architecture_;
  std::string root_;
  std::deque<Entry> entries_;
  std::map<std::string, HfSource, std::less<>> sources_;
  std::map<std::string, HfRecipe, std::less<>> recipes_;
  std::set<std::string, std::less<>> used_;
  std::vector<std::string> skipped_prefixes_, skipped_parts_;
};

}  // namespace cairn
