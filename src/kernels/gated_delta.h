// Gated DeltaNet, token-sequential (never the chunked form: its bits depend on the chunking).
// Source: arXiv 2412.06464; with a decay for each key channel it is Kimi Delta Attention, arXiv
// 2510.26692.
//
// Per value head h with key head KeyHead(h), memory S [dk][dv] f32 (dk-major, so that vectors run
// along dv), per token:
//   S = diag(g) S;  delta = beta (v - k^T S);  S = S + k (x) delta;  out = q^T S.
// The definition, on every level, for one column of dv (i runs over dk):
//   s[i]  = g[i] * S[i]            g[i] = g of the head, or of its key channel i
//   a     = fma(k[i], s[i], a), b = fma(q[i], s[i], b), i ascending, both from +0
//   delta = beta * (v - a)
//   out   = fma(qk, delta, b), qk = q . k by the 16-lane rule of vector_ops.h
//   S[i]  = fma(k[i], delta, s[i])
// The last line may be done later, inside the pass of the next token: it is the same operation on
// the same numbers, so neither chunk borders nor taps change a bit, and a tile of S stays in L1
// over many tokens.
//
// Threads: slices x value heads x column tiles run in parallel on ctx.pool. Nothing is allocated;
// states and taps are the caller's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/kernel_context.h"
#include "kernels/recurrent.h"

namespace cairn {

enum class DeltaHeadMap {
  kTiled /* h % key_heads: GGUF qwen35 */,
  kGrouped /* h / (value_heads / key_heads) */
};

enum class DeltaDecay { kPerHead, kPerKeyChannel };

struct GatedDeltaShape {
  int key_heads;
  int value_heads;
  int key_dim;    // dk, 1..256
  int value_dim;  // dv, multiple of 16
  DeltaHeadMap map;
  DeltaDecay decay = DeltaDecay::kPerHead;
  int decays() const {  // of a row
    return decay == DeltaDecay::kPerHead ? value_heads : value_heads * key_dim;
  }
  size_t state_floats() const {
    return static_cast<size_t>(value_heads) * key_dim * value_dim;
  }  // [Hv][dk][dv]
};

// Key head of value head h.
int DeltaKeyHead(const GatedDeltaShape& shape, int value_head);

// q, k [rows, ldqk]: key_heads x dk, already normalised and scaled. v [rows, ldv]: value_heads x
// dv. g [rows, decays()]: by head, then channel, factors (not their logarithms); beta [rows,
// value_heads]. out [rows, ldout]: value_heads x dv, must not overlap v. A tap's dst may not
// overlap a state.
void GatedDelta(const KernelContext& ctx, const GatedDeltaShape& shape,
                std::span<const RecurrentSlice> slices, const float* q, const float* k,
                int64_t ldqk, const float* v, int64_t ldv, const float* g, const float* beta,
                float* out, int64_t ldout);

}  // namespace cairn
