// What a checkpoint costs on this machine: bytes, and the speed of saving and restoring beside a
// plain copy.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "kernels/kernel_context.h"
#include "model/model.h"

namespace cairn {

struct CheckpointFigures {
  uint64_t state_bytes;  // of one state buffer
  double save_ms;        // a tap: the state is written a second time while the kernels run through
  double save_gbps;
  double restore_ms;  // into a live state: the buffer and the partly filled block are copied
  double restore_gbps;
  double memcpy_gbps;  // as many bytes into memory that is already mapped, one thread
};

// Medians of a few runs. Errors: kResourceExhausted.
Result<CheckpointFigures> MeasureCheckpoint(const Model& model, const KernelContext& ctx);

}  // namespace cairn
