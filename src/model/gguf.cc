#include "model/gguf.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "model/gguf_parser.h"
#include "model/weights.h"

namespace cairn {

namespace {

class GgufTensorSource final : public TensorSource {
 public:
  explicit GgufTensorSource(const GgufFile& file) : file_(file) {
    for (const GgufTensor& tensor : file.tensors()) total_bytes_ += tensor.bytes.size();
  }

  bool Has(std::string_view name) const override { return file_.FindTensor(name) != nullptr; }

  Result<TensorView> Get(std::string_view name) const override {
    ASSIGN_OR_RETURN(const GgufTensor* tensor, file_.GetTensor(name));
    const std::optional<WeightType> type = WeightTypeFromGgml(tensor->ggml_type);
    if (!type) {
      return Unsupported("[gguf] tensor " + QuoteForMessage(name) + ": got " +
                         GgmlTypeName(tensor->ggml_type) + ", wanted one of " +
                         SupportedTensorTypes());
    }
    TensorView view;
    view.type = *type;
    view.shape.assign(tensor->dims.rbegin(), tensor->dims.rend());
    view.bytes = tensor->bytes;
    return view;
  }

  uint64_t total_bytes() const override { return total_bytes_; }
  void Release(const TensorView& tensor) const override { file_.ReleasePages(tensor.bytes); }

 private:
  const GgufFile& file_;
  uint64_t total_bytes_ = 0;
};

}  // namespace

int64_t GgufTensor::element_count() const {
  int64_t count = 1;
  for (const int64_t dim : dims) count *= dim;
  return count;
}

namespace {

// A part of a model cut into several files has the metadata of the whole and some of its tensors.
Status CheckWhole(const GgufFile& file) {
  ASSIGN_OR_RETURN(const uint64_t count, file.GetU64Or("split.count", 1));
  if (count <= 1) return Status();
  ASSIGN_OR_RETURN(const uint64_t number, file.GetU64Or("split.no", 0));
  return Unsupported("[gguf] part " + std::to_string(number + 1) + " of " + std::to_string(count) +
                     " of a split model, wanted one file (llama-gguf-split --merge joins them)");
}

}  // namespace

Result<GgufFile> GgufFile::Open(const std::string& path, const GgufLimits& limits) {
  ASSIGN_OR_RETURN(MappedFile map, MappedFile::Open(path));
  GgufFile file;
  Status status = GgufParser(map.bytes(), limits).Parse(&file);
  if (status.ok()) status = CheckWhole(file);
  if (!status.ok()) return Status(status.code(), status.message() + " in file '" + path + "'");
  file.path_ = path;
  file.map_ = std::move(map);  // the bytes stay where they are
  return file;
}

Result<GgufFile> GgufFile::FromBytes(std::span<const std::byte> bytes, const GgufLimits& limits) {
  GgufFile file;
  RETURN_IF_ERROR(GgufParser(bytes, limits).Parse(&file));
  return file;
}

const GgufTensor* GgufFile::FindTensor(std::string_view name) const {
  const auto at =
      std::lower_bound(tensor_order_.begin(), tensor_order_.end(), name,
                       [&](uint32_t i, std::string_view n) { return tensors_[i].name < n; });
  if (at == tensor_order_.end() || tensors_[*at].name != name) return nullptr;
  return &tensors_[*at];
}

Result<const GgufTensor*> GgufFile::GetTensor(std::string_view name) const {
  const GgufTensor* tensor = FindTensor(name);
  if (tensor == nullptr) {
    return NotFound("[gguf] tensor " + QuoteForMessage(name) + ": got none, wanted it in the file");
  }
  return tensor;
}

Result<std::vector<int64_t>> GgufFile::TensorShape(std::string_view name) const {
  ASSIGN_OR_RETURN(const GgufTensor* tensor, GetTensor(name));
  return std::vector<int64_t>(tensor->dims.rbegin(), tensor->dims.rend());
}

std::vector<TensorInfo> GgufFile::ListTensors() const {
  std::vector<TensorInfo> list;
  for (const GgufTensor& tensor : tensors_) {
    TensorInfo info;
    info.name = tensor.name;
    info.shape.assign(tensor.dims.rbegin(), tensor.dims.rend());
    info.type = WeightTypeFromGgml(tensor.ggml_type);
    info.type_name = GgmlTypeName(tensor.ggml_type);
    info.bytes = tensor.bytes.size();
    list.push_back(std::move(info));
  }
  return list;
}

std::unique_ptr<TensorSource> GgufFile::OpenTensors() const {
  return std::make_unique<GgufTensorSource>(*this);
}

void GgufFile::ReleasePages(std::span<const std::byte> bytes) const {
  if (!map_.bytes().empty()) map_.Release(bytes);
}

void GgufFile::PrefetchPages(std::span<const std::byte> bytes) const {
  if (!map_.bytes().empty()) map_.Prefetch(bytes);
}

}  // namespace cairn
