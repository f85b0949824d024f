// A model file, whatever its format.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "model/model_file.h"

namespace cairn {

// A GGUF file, a Hugging Face or MLX directory, or a repository in the Hugging Face cache.
Result<std::unique_ptr<ModelFile>> OpenModelFile(const std::string& path);

}  // namespace cairn
