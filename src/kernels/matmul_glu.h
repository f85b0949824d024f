// The gated half of a feed-forward block in one pass: act(x Wg^T) * (x Wu^T), at once in the int8
// form that the next matmul reads. Some panels of the gate are followed by the panels of up that
// they multiply while the sums of both are in the cache, so that neither ever becomes a row in
// memory.
//
// Threads: runs on ctx.pool, split by panels and rows. Nothing is allocated.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/matmul.h"

namespace cairn {

enum class GluActivation { kSilu, kGelu /* tanh form, Gemma */ };

// a [rows, k] in its int8 form; gate_up [2 n, k], quantised: the rows of Wg, then those of Wu. The
// result, a view of `workspace`, is [rows, n] and, bit for bit, what PrepareActivations makes of
// SwiGluRows or GeGluRows of MatMul; it has no x. `workspace`: ActivationBytes(rows, n), 64-byte
// aligned, apart from a's. REQUIRES: n % 32 == 0.
Activations GluMatMul(const KernelContext& ctx, const Activations& a, const PackedMatrix& gate_up,
                      GluActivation activation, std::span<std::byte> workspace);

}  // namespace cairn
