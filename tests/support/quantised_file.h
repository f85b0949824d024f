// Copies of model files with changes, made in memory; among them Q8_0 and F32 copies, for
// architectures whose fixtures are of another type.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "model/gguf.h"
#include "support/gguf_writer.h"

namespace cairn::testing {

// One value under the name `key`, and all metadata of `file`.
void CopyEntry(const ModelFile::Entry& entry, std::string_view key, GgufWriter& writer);
void CopyEntries(const ModelFile& file, GgufWriter& writer);
// The values of a tensor, file order. REQUIRES: F32, F16 or BF16.
std::vector<float> TensorValues(const GgufTensor& tensor);

// The bytes of a GGUF file with the same metadata, in which every matrix whose rows are whole
// blocks is Q8_0 (scale = max |x| / 127 as f16, q = round half to even), but for what converters
// keep as float: norms, convolutions, routers; the rest is F32. `file` may be a directory.
// REQUIRES: its tensors are F32, F16 or BF16.
std::vector<std::byte> QuantisedCopy(const ModelFile& file);
// The same with F32 alone.
std::vector<std::byte> FloatCopy(const ModelFile& file);

}  // namespace cairn::testing
