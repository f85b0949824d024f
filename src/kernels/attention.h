// Causal attention over the paged KV store: one algorithm for prefill and decode.
//
// The law: a row's result depends only on its q and the keys and values 0..position as they lie in
// the store (already rounded to the KV type), in this order of operations, the same on every level:
//   q'[d] = q[d] * scale.
//   Keys are taken in absolute segments of 256 positions. In a segment, over the keys up to the
//   row's position:
//     s_j = fma(q'[d], k_j[d], s_j) from +0, d ascending; m = max_j s_j; p_j = Exp(s_j - m);
//     l = sum of p_j by the 16-lane rule of vector_ops.h (lane = key index mod 16);
//     o[d] = fma(p_j, v_j[d], o[d]) from +0, keys ascending.
//   Segments merge in order into (M, L, O); the first is copied; then, with M' = max(M, m),
//     a = Exp(M - M'), b = Exp(m - M'): L = fma(L, a, l * b), O[d] = fma(O[d], a, o[d] * b), M =
//     M'.
//   out[d] = O[d] / L; a NaN is the default one.
// With a window W, only keys position - W + 1 .. position count: p of an older key is +0, so it
// adds +0 to l and, where v is finite, to o; (M, L, O) starts at (lowest float, +0, +0) and every
// segment from the one that holds the oldest such key is merged, none copied. Keys behind the
// position are not masked but left out, so not even NaN there reaches the row. Neither the tile a
// row shares nor the chunk it arrives in changes its bits. Threads split rows, heads or segments,
// never a segment's keys.
//
// Store layout, per block of 64 positions, per layer, per KV head: K transposed [head_dim][64],
// then V [64][head_dim], both KvType; StoredKey and StoredValue read it.
//
// q8_0: K and V lie as int8 with bfloat16 scales and both products are exact integer sums:
//   x ~ scale * i, of n values: amax = max |x|, scale = amax / 127 rounded up to bfloat16, i = x *
//     (1 / scale) rounded to nearest even; amax < 2^-100: scale = 0; a NaN or infinity: scale =
//     NaN.
//   K has a scale per 32 dims (channels with large values, which some models' keys have, spoil
//     their neighbours only); V one per row, so that it can go into p; q' is rounded like K.
//   s_j = fma(float(sum of q'_i * k_i in dims 32 b ..), q'_scale_b * k_scale_jb, s_j) from +0, b
//     ascending.
//   w_j = p_j * v_scale_j; top = max_j w_j; w'_j = w_j * (32767 / top) rounded to nearest even;
//     o[d] = float(sum of w'_j * v_j[d]) * (top / 32767); 0 if top < 2^-100, NaN if a w_j is.
//     16 bits for p: with 8, keys of small p near one of large p would be lost.
//   Layout: K uint8 [head_dim / 4][64][4], value + 128; its scales [head_dim / 32, up][64];
//   V int8 [32][head_dim][2], two positions side by side; its scales [64].
//
// Threads: StoreKv and Attend run on ctx.pool and allocate nothing. Ownership: blocks, rows and
// scratch are the caller's; no block is written by two slices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/kernel_context.h"
#include "kernels/kv_type.h"

namespace cairn {

inline constexpr int kBlockPositions = 64;
inline constexpr int kSegmentPositions = 256;

const char* KvTypeName(KvType type);  // "f32", "f16", "q8_0"

struct AttentionShape {
  int heads;     // of q, a multiple of kv_heads
  int kv_heads;  // query head h reads KV head h / (heads / kv_heads)
  int head_dim;  // <= 576, any multiple of 8
  float scale;   // of q
  KvType kv_type;
  int window = 0;  // keys a row sees, its own included; 0: all
  // Of one block and KV head; V follows K, head follows head.
  size_t key_bytes() const;
  size_t value_bytes() const;
  size_t head_bytes() const { return key_bytes() + value_bytes(); }
  size_t layer_bytes() const { return kv_heads * head_bytes(); }
};

// Element d of the key or value at `slot` of a block, as float32, exact. head: the block's bytes of
// the layer and KV head.
float StoredKey(const AttentionShape& shape, const std::byte* head, int slot, int d);
float StoredValue(const AttentionShape& shape, const std::byte* head, int slot, int d);

// Rows of one sequence in this step.
struct AttentionSlice {
  int row_begin;  // first row in q/k/v/out
  int row_count;
  int64_t position;  // absolute position of row_begin
  std::span<std::byte* const>
      blocks;  // blocks first_block .. ceil((position + row_count) / 64) - 1 of the sequence
  size_t layer_offset;  // byte offset of this layer inside a block
  // Blocks before this one, a multiple of 4, are left out of `blocks`: for windows. Entries whose
  // keys no row sees may name any block of finite values.
  int64_t first_block = 0;
};

// Writes the rows' k [rows, ldk] and v [rows, ldv], kv_heads x head_dim contiguous values a row,
// into the store, rounded to the KV type (f16 saturates).
void StoreKv(const KernelContext& ctx, const AttentionShape& shape,
             std::span<const AttentionSlice> slices, const float* k, int64_t ldk, const float* v,
             int64_t ldv);

// out [rows, ldout] for all rows of all slices, from q [rows, ldq]: both heads x head_dim
// contiguous values a row; they must not overlap. Reads K and V from the store only, also for this
// step's rows (so after StoreKv). scratch: AttentionScratchBytes(shape, rows of all slices
// together, max position + 1, threads), 64-byte aligned.
size_t AttentionScratchBytes(const AttentionShape& shape, int rows_max, int64_t positions_max,
                             int threads);
void Attend(const KernelContext& ctx, const AttentionShape& shape,
            std::span<const AttentionSlice> slices, const float* q, int64_t ldq, float* out,
            int64_t ldout, std::span<std::byte> scratch);

}  // namespace cairn
