// What a checkpoint costs on this machine: bytes, and the speed of saving and restoring beside a
// plain copy.
#pragma once

#include <cstdint>
#include <optional>

#include "base/status.h"
#include "kernels/kernel_context.h"
#include "model/model.h"

namespace cairn {

// Tokens of context that the measurement needs.
constexpr int kCheckpointBenchTokens = 160;

struct CheckpointFigures {
  struct Save {
    double ms, gbps;
  };
  uint64_t state_bytes;      // of one state buffer
  std::optional<Save> save;  // a tap: the state is written a second time while the kernels run
                             // through; empty: lost in the noise of a busy machine
  double restore_ms;         // into a live state: the buffer and the partly filled block are copied
  double restore_gbps;
  double memcpy_gbps;  // as many bytes into memory that is already mapped, one thread
};

// The best of a few runs. Errors: kResourceExhausted.
Result<CheckpointFigures> MeasureCheckpoint(const Model& model, const KernelContext& ctx);

}  // namespace cairn
