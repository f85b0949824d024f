#include "model/hf/hf_directory.h"

#include <filesystem>
#include <utility>

#include "base/bytes.h"
#include "kernels/quant.h"
#include "model/hf/adapters.h"
#include "model/hf/hf_quantization.h"

namespace cairn {
namespace {

constexpr uint64_t kConfigBytesMax = 16ull << 20;

class HfTensorSource final : public TensorSource {
 public:
  explicit HfTensorSource(const HfDirectory& directory) : directory_(directory) {
    for (const TensorInfo& tensor : directory.ListTensors()) total_bytes_ += tensor.bytes;
  }

  bool Has(std::string_view name) const override { return directory_.HasTensor(name); }

  Result<TensorView> Describe(std::string_view name) const override {
    ASSIGN_OR_RETURN(const HfRecipe* recipe, Find(name));
    TensorView view;
    view.type = recipe->type;
    view.shape = recipe->shape;
    return view;
  }

  Result<TensorView> Get(std::string_view name) const override {
    ASSIGN_OR_RETURN(const HfRecipe* recipe, Find(name));
    return MakeTensor(*recipe, directory_.shards());
  }

  std::string NameInFiles(std::string_view name) const override {
    const HfRecipe* recipe = directory_.FindRecipe(name);
    return recipe == nullptr || recipe->runs.empty() ? "" : recipe->runs.front().source->name;
  }
  uint64_t total_bytes() const override { return total_bytes_; }
  void Release(const TensorView& tensor) const override {
    if (tensor.owner == nullptr) directory_.shards().ReleasePages(tensor.bytes);
  }

 private:
  Result<const HfRecipe*> Find(std::string_view name) const {
    const HfRecipe* recipe = directory_.FindRecipe(name);
    if (recipe == nullptr) {
      return NotFound("[hf] tensor " + QuoteForMessage(name) +
                      ": got none, wanted it in the directory");
    }
    return recipe;
  }

  const HfDirectory& directory_;
  uint64_t total_bytes_ = 0;
};

// The name of a model that has no other: its directory, or its repository in the cache.
std::string NameOf(const std::string& directory) {
  std::error_code ec;  // "." and ".." are no names
  std::filesystem::path path = std::filesystem::absolute(directory, ec);
  path = (ec ? std::filesystem::path(directory) : path).lexically_normal();
  const std::filesystem::path own =
      path.filename().empty() ? path.parent_path().filename() : path.filename();
  for (const std::filesystem::path& part : path) {
    const std::string name = part.string();
    if (!name.starts_with("models--")) continue;
    const size_t last = name.rfind("--");
    return name.substr(last + 2);
  }
  return own.string();
}

}  // namespace

Result<std::unique_ptr<HfDirectory>> HfDirectory::Open(const std::string& path) {
  std::unique_ptr<HfDirectory> directory(new HfDirectory());
  ASSIGN_OR_RETURN(directory->path_, ResolveHfDirectory(path));
  const std::string config_path = directory->path_ + "/config.json";
  std::error_code ec;
  if (!std::filesystem::exists(config_path, ec)) {
    return NotFound("[hf] directory '" + directory->path_ + "': config.json is missing");
  }
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(config_path, kConfigBytesMax));
  ASSIGN_OR_RETURN(const JsonValue config, ParseJson(text, "config.json"));
  const Status status = directory->Build(config);
  if (!status.ok()) {
    const bool named = status.message().find(directory->path_) != std::string::npos;
    return Status(status.code(),
                  status.message() + (named ? "" : " in directory '" + directory->path_ + "'"));
  }
  return directory;
}

Status HfDirectory::Build(const JsonValue& config) {
  if (!config.is_object()) return DataLoss("[hf] config.json: got no object");
  ASSIGN_OR_RETURN(const HfAdapter* adapter, FindHfAdapter(config));
  RETURN_IF_ERROR(CheckQuantization(config));
  ASSIGN_OR_RETURN(text_, ReadHfText(path_, config));
  ASSIGN_OR_RETURN(shards_, HfShards::Open(path_));
  const std::string_view architecture = adapter->choose_architecture != nullptr
                                            ? adapter->choose_architecture(config)
                                            : adapter->architecture;
  HfBuilder builder(config, shards_, std::string(architecture));
  builder.SetString("general.name", NameOf(path_));
  RETURN_IF_ERROR(adapter->build(builder));
  owned_entries_ = builder.TakeEntries();
  unused_ = builder.Unused();
  recipes_ = builder.TakeRecipes();
  sources_ = builder.TakeSources();
  for (const HfBuilder::Entry& owned : owned_entries_) {
    Entry& entry = entries_.emplace_back();
    entry.key = owned.key;
    entry.type = owned.type;
    entry.element_type = owned.element_type;
    entry.count = owned.count;
    entry.bytes = std::as_bytes(std::span(owned.bytes));
  }
  return IndexEntries();
}

const HfRecipe* HfDirectory::FindRecipe(std::string_view name) const {
  const auto at = recipes_.find(name);
  return at == recipes_.end() ? nullptr : &at->second;
}

Result<std::vector<int64_t>> HfDirectory::TensorShape(std::string_view name) const {
  const HfRecipe* recipe = FindRecipe(name);
  if (recipe == nullptr) {
    return NotFound("[hf] tensor " + QuoteForMessage(name) +
                    ": got none, wanted it in the directory");
  }
  return recipe->shape;
}

std::vector<TensorInfo> HfDirectory::ListTensors() const {
  std::vector<TensorInfo> list;
  for (const auto& [name, recipe] : recipes_) {
    TensorInfo info;
    info.name = name;
    info.shape = recipe.shape;
    info.type = recipe.type;
    info.type_name = WeightTypeName(recipe.type);
    info.bytes = recipe.bytes();
    list.push_back(std::move(info));
  }
  for (const SafetensorsTensor* tensor : unused_) {
    TensorInfo info;
    info.name = tensor->name;
    info.shape = tensor->shape;
    info.type = WeightTypeFromDtype(tensor->dtype);
    info.type_name = tensor->dtype;
    info.bytes = tensor->bytes.size();
    list.push_back(std::move(info));
  }
  return list;
}

std::unique_ptr<TensorSource> HfDirectory::OpenTensors() const {
  return std::make_unique<HfTensorSource>(*this);
}

}  // namespace cairn
