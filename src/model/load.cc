#include "model/load.h"

#include <set>
#include <string>
#include <utility>

#include "model/registry.h"

namespace cairn {
namespace {

// Remembers which tensors were asked for, so that a file with more terms than the architecture
// computes (another bias, an extra norm) is refused instead of computed wrongly.
class RecordingSource final : public TensorSource {
 public:
  explicit RecordingSource(const TensorSource& inner) : inner_(inner) {}
  bool Has(std::string_view name) const override { return inner_.Has(name); }
  Result<TensorView> Get(std::string_view name) const override {
    asked_.emplace(name);
    return inner_.Get(name);
  }
  Result<TensorView> Describe(std::string_view name) const override {
    return inner_.Describe(name);
  }
  std::string NameInFiles(std::string_view name) const override { return inner_.NameInFiles(name); }
  uint64_t total_bytes() const override { return inner_.total_bytes(); }
  void Release(const TensorView& tensor) const override { inner_.Release(tensor); }

  bool Asked(std::string_view name) const { return asked_.contains(name); }

 private:
  const TensorSource& inner_;
  mutable std::set<std::string, std::less<>> asked_;  // one thread loads
};

}  // namespace

Result<std::unique_ptr<Model>> LoadModel(const ModelFile& file, const LoadOptions& options) {
  if (options.context_length.has_value() &&
      (*options.context_length < 1 || *options.context_length > kContextLengthMax)) {
    return InvalidArgument("[model] context length is " + std::to_string(*options.context_length) +
                           ", wanted 1 to " + std::to_string(kContextLengthMax));
  }
  ASSIGN_OR_RETURN(const Architecture* architecture, ArchitectureOf(file));
  const std::unique_ptr<TensorSource> tensors = file.OpenTensors();
  const RecordingSource source(*tensors);
  Weights weights(source, options.progress);
  ASSIGN_OR_RETURN(std::unique_ptr<Model> model, architecture->load(file, weights, options));
  for (const TensorInfo& tensor : file.ListTensors()) {
    if (source.Asked(tensor.name) || architecture->ignores(file, tensor.name)) continue;
    return Unsupported("[model] tensor " + tensor.name + " has no place in a " +
                       std::string(architecture->name) + " model of this version");
  }
  return model;
}

}  // namespace cairn
