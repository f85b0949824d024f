// Gated DeltaNet, token-sequential (never the chunked form: its bits depend on the chunking).
// Source: arXiv 2412.06464.
//
// Per value head h with key head KeyHead(h), memory S [dk][dv] f32 (dk-major, so that vectors run
// along dv), per token:
//   S = g S;  delta = beta (v - k^T S);  S = S + k (x) delta;  out = q^T S.
// Order, on every level: a = sum over dk ascending of fma(k[i], g * S[i], a); likewise b for q;
// delta = beta * (v - a);
//   out = fma(q.k, delta, b), q.k by fma over dk ascending; S[i] = fma(k[i], delta, g * S[i]).
// The update of token t-1 may be folded into the pass of token t (same operations per element), so
// a tile stays in L1 over many tokens.
#pragma once

#include <span>

#include "kernels/kernel_context.h"
#include "kernels/recurrent.h"

namespace cairn {

enum class DeltaHeadMap {
  kTiled /* h % key_heads: GGUF qwen35 */,
  kGrouped /* h / (value_heads / key_heads) */
};

struct GatedDeltaShape {
  int key_heads;
  int value_heads;
  int key_dim;    // dk
  int value_dim;  // dv, multiple of 16
  DeltaHeadMap map;
  size_t state_floats() const {
    return static_cast<size_t>(value_heads) * key_dim * value_dim;
  }  // [Hv][dk][dv]
};

// q, k [rows, ldqk]: key_heads x dk, already normalised and scaled. v [rows, ldv]: value_heads x
// dv. g, beta [rows, value_heads]. out [rows, ldout]: value_heads x dv. Parallel over (slice, head,
// column tile).
void GatedDelta(const KernelContext& ctx, const GatedDeltaShape& shape,
                std::span<const RecurrentSlice> slices, const float* q, const float* k,
                int64_t ldqk, const float* v, int64_t ldv, const float* g, const float* beta,
                float* out, int64_t ldout);

}  // namespace cairn
