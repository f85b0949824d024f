// The tokenizer part of a GGUF file's metadata as the text library wants it.
#pragma once

#include "base/status.h"
#include "model/model_file.h"
#include "text/tokenizer.h"

namespace cairn {

// Errors: DataLoss (missing or broken keys), Unsupported (a tokenizer model this version does not
// know).
Result<TokenizerSpec> ReadTokenizerSpec(const ModelFile& file);

}  // namespace cairn
