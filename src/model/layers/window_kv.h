// Attention over a sliding window whose keys and values lie in the state buffer, as a ring of
// blocks: absolute block b lies at place b % WindowKv::blocks(). The ring holds what the next row
// may need and nothing that depends on how the tokens came: a block is zeroed when its first
// position is written, and older positions of the ring stay as they were written.
//
// Threads: as Step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/attention.h"
#include "model/layers/step.h"
#include "state/state_layout.h"

namespace cairn {

// The part of a state buffer that a layer with this shape has. REQUIRES: shape.window > 0.
WindowKv WindowPart(const AttentionShape& shape);

// Stores the rows' k and v, attends, and copies the ring to the taps; q, k, v and out as in
// kernels/attention.h, `offset` of the layer's part in a state buffer.
void AttendWindow(const Step& step, const AttentionShape& shape, size_t offset, const float* q,
                  int64_t ldq, const float* k, const float* v, int64_t ldkv, float* out,
                  int64_t ldout);

// Where the blocks of positions [0, tokens) lie in a ring; all but the last blocks() are gone and
// name blocks that came later.
std::vector<std::byte*> RingBlocks(const AttentionShape& shape, const std::byte* ring,
                                   int64_t tokens);

}  // namespace cairn
