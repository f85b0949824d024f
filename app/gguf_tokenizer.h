// The tokenizer part of a GGUF file's metadata as the text library wants it.
#pragma once

#include "base/status.h"
#include "model/gguf.h"
#include "text/tokenizer.h"

namespace cairn {

// Errors: DataLoss (missing or broken keys), Unsupported (a tokenizer model this version does not
// know).
Result<TokenizerSpec> ReadTokenizerSpec(const GgufFile& file);

}  // namespace cairn
