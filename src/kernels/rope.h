// Rotary position embedding, angles computed at load in double and applied with one fixed formula
// on every level. Source: arXiv 2104.09864; pair conventions of golden/README ("rotary pairs").
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kernel_context.h"

namespace cairn {

enum class RopePairs { kHalfSplit /* (i, i + n/2) */, kInterleaved /* (2i, 2i + 1), GGUF llama */ };

// Frequencies of one model, fixed at load. Immutable.
struct RopeTable {
  RopePairs pairs = RopePairs::kHalfSplit;
  int rotary_dims = 0;           // n: the first n dims of a head rotate, the rest pass
  std::vector<double> inv_freq;  // [n / 2], after scaling (rope_freqs divides)
  float magnitude = 1.0f;        // factor on cos and sin (yarn); 1 otherwise
};

// x[r, h, :] in place, row r at absolute position positions[r]; x [rows, ldx], heads of head_dim.
// cos/sin of position * inv_freq are computed in double by our own reduction + polynomial (the same
// bits everywhere; libm is not used) and rounded to f32 once.
void RopeRows(const KernelContext& ctx, const RopeTable& table, float* x, int64_t ldx,
              const int64_t* positions, int rows, int heads, int head_dim);

}  // namespace cairn
