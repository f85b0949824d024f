// A model against a golden set: feeds every case and measures logits and states.
#pragma once

#include <string>

#include "base/status.h"
#include "kernels/kernel_context.h"
#include "model/model.h"
#include "support/golden.h"

namespace cairn::testing {

struct GoldenRun {
  explicit GoldenRun(int64_t vocab) : logits(vocab) {}

  LogitsError logits;
  double states = 0;       // largest |difference| / max(1, max |state|)
  int states_seen = 0;     // tensors compared
  int states_unknown = 0;  // exported, but without a stored file
  std::string misshapen;   // a state whose shape is not the stored one's
};

// Opens and loads with float KV, so that nothing but the arithmetic is measured.
Result<std::unique_ptr<Model>> LoadWithFloatKv(const std::string& path);

// All cases in chunks of 128, with states where a case has them and `with_states` is set.
GoldenRun RunGolden(const Model& model, CpuLevel level, const GoldenSet& set, bool with_states);

}  // namespace cairn::testing
