#include "model/open_model.h"

#include <filesystem>
#include <utility>

#include "model/gguf.h"
#include "model/hf/hf_directory.h"

namespace cairn {

Result<std::unique_ptr<ModelFile>> OpenModelFile(const std::string& path) {
  std::error_code ec;
  if (std::filesystem::is_directory(path, ec)) {
    ASSIGN_OR_RETURN(std::unique_ptr<HfDirectory> directory, HfDirectory::Open(path));
    return std::unique_ptr<ModelFile>(std::move(directory));
  }
  if (path.ends_with(".safetensors") || path.ends_with(".json")) {
    return InvalidArgument("[model] '" + path + "' is a part of a model, wanted its directory");
  }
  ASSIGN_OR_RETURN(GgufFile file, GgufFile::Open(path));
  return std::unique_ptr<ModelFile>(std::make_unique<GgufFile>(std::move(file)));
}

}  // namespace cairn
