// A model file, whatever its format.
//
// Threads: a free function; the result is immutable.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "model/model_file.h"

namespace cairn {

// A GGUF file, a Hugging Face or MLX directory, or a repository in the Hugging Face cache. Errors:
// those of GgufFile::Open and HfDirectory::Open; InvalidArgument for a part of a directory.
Result<std::unique_ptr<ModelFile>> OpenModelFile(const std::string& path);

}  // namespace cairn
