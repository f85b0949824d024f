// From a weights file to a Model. Start here.
//
// Threads: LoadModel runs on the caller's thread; the result is immutable.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/status.h"
#include "kernels/attention.h"
#include "model/config.h"
#include "model/model.h"
#include "model/model_file.h"
#include "model/weights.h"

namespace cairn {

struct LoadOptions {
  KvType kv_type = KvType::kF16;
  std::optional<int64_t> context_length;  // in force; else the length the file declares
  Weights::Progress progress;             // bytes read so far, of all; may be empty
};

// Positions beyond it have no exact angles (ComputeRopeAngles).
inline constexpr int64_t kContextLengthMax = int64_t{1} << 22;

// The context length in force; of a file that declares more than there may be, as much as may be.
inline int64_t ContextInForce(const DecoderConfig& config, const LoadOptions& options) {
  return std::min(options.context_length.value_or(config.trained_context_length),
                  kContextLengthMax);
}

// The file may be closed afterwards. Errors: InvalidArgument (options), DataLoss (broken file),
// Unsupported (architecture, tensor type, or a tensor this version would have to leave out).
Result<std::unique_ptr<Model>> LoadModel(const ModelFile& file, const LoadOptions& options = {});

}  // namespace cairn
