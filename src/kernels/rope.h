// Rotary position embedding: angles once per step, applied by every layer with one fixed formula.
// Source: arXiv 2104.09864; llama3 scaling and pair conventions as in the checkpoints' own code.
//
// Angles: position * inv_freq is one double product; cos and sin of it come from our own double
// reduction and polynomials (no libm), are multiplied by the magnitude in double and rounded once
// to f32: the same bits on every machine and level.
//
// Threads: pure functions on the caller's spans; rows are split over ctx.pool. Only
// RopeInverseFrequencies allocates.
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
  std::vector<double> inv_freq;  // [n / 2] radians a position, after scaling (rope_freqs divides)
  float magnitude = 1.0f;        // factor on cos and sin (yarn); 1 otherwise
  int half() const { return rotary_dims / 2; }
};

// theta^(-2i / n) for i < n / 2, by our own log and exp in double (relative error < 1e-14), so that
// a table does not depend on the machine's libm. REQUIRES: theta > 0, n even.
std::vector<double> RopeInverseFrequencies(double theta, int rotary_dims);

// The natural logarithm in plain double operations, for tables that are made at load. REQUIRES: x
// > 0 and finite.
double LogDouble(double x);

// A view of the rows' cos and sin, both [rows][half]; the memory is the caller's.
struct RopeAngles {
  const float* cos;
  const float* sin;
};

// Fills cos and sin [rows][table.half()] for |positions[r]| <= 2^22; each is within 1 ulp of the
// exact value for the double product. Once per step, shared by all layers and by q and k.
RopeAngles ComputeRopeAngles(const KernelContext& ctx, const RopeTable& table,
                             std::span<const int64_t> positions, float* cos, float* sin);

// Rotates heads in place: head h of row r begins at x + r * ldx + h * head_stride (see
// vector_ops.h) and its first rotary_dims dims rotate:
//   x0' = fma(-x1, sin, x0 * cos),  x1' = fma(x0, sin, x1 * cos).
void ApplyRope(const KernelContext& ctx, const RopeTable& table, const RopeAngles& angles, float* x,
               int64_t ldx, int64_t head_stride, int rows, int heads);

}  // namespace cairn
