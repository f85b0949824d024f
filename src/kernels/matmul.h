// y[rows, n] = x[rows, k] * W^T with W [n, k] in any supported weight type, repacked once at load
// into panels of 32 output columns.
//
// The law (docs/exactness.md): one output element is one accumulation in one fixed order over k,
// the same for 1 row and for 512, on every CPU level, for every thread count and whatever rows
// share the call:
//   float weights:     acc = fma(w[k], x[k], acc), k ascending; w converted exactly to f32.
//   quantised weights: x is quantised per row and per block of 32 (QuantizeRow in quant.h):
//     x ~ a_scale[b] * a[b][0..31], a int8. Weights are w_scale * (u - zero) + w_min, u unsigned.
//     acc = +0; for each block b of 32, ascending:
//       acc = fma(float(isum), w_scale * a_scale[b], acc)    isum: the exact int32 sum of
//                                                            (u - zero) * a over the block; |isum|
//                                                            < 2^24, so float(isum) is exact
//       acc = fma(w_min, a_scale[b] * float(sum(a)), acc)    only types with a minimum
//     MLX affine types: scale * a_scale and offset, both as stored (f16, bf16 or f32), of the group
//     of 32, 64 or 128 that holds the block; the offset is the minimum.
//     Q6_K has a scale per 16: the first fma twice per block, lower 16 first.
//     w_scale: d (Q4_0, Q4_1, Q5_0, Q5_1, Q8_0); d * sc (Q4_K, Q5_K: sc 6 bits; Q6_K: sc int8),
//     exact in f32. w_min: m (Q4_1, Q5_1); -(dmin * m6) (Q4_K, Q5_K), exact. zero: 8 (Q4_0), 16
//     (Q5_0), 32 (Q6_K), 128 (Q8_0 as stored), 0 (types with a minimum). Each product of two floats
//     is rounded once.
//   Threads split n and rows, never k.
//
// Threads: a PackedMatrix is immutable after Pack and shared freely. Pack and DequantizeRow run on
// the calling thread, PrepareActivations, MatMul and MatMulAll on ctx.pool; these three allocate
// nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "base/bytes.h"
#include "base/status.h"
#include "kernels/kernel_context.h"
#include "kernels/panel_arena.h"
#include "kernels/quant.h"

namespace cairn {

// W [n, k]. Owns its panels' memory (copies share it). Repacked size <= 1.03 x the file's bytes (n
// rounded up to 32 apart).
class PackedMatrix {
 public:
  PackedMatrix() = default;
  // `rows` are the file's bytes: n rows of RowBytes(type, k) each. Errors: InvalidArgument if k is
  // no multiple of the type's block or a size does not match; ResourceExhausted if the arena gets
  // no memory.
  // A model's loader passes one arena for all its matrices, so that they lie in huge pages (twice
  // the speed of decoding); without one the panels lie in a buffer of their own.
  static Result<PackedMatrix> Pack(WeightType type, int64_t n, int64_t k,
                                   std::span<const std::byte> rows, PanelArena* arena = nullptr);
  // Stacks matrices of one type and one k along n (q|k|v, gate|up) into one, so that one call
  // computes them all. n of each part but the last must be a multiple of 32, else InvalidArgument.
  struct Part {
    WeightType type;
    int64_t n;
    std::span<const std::byte> rows;
  };
  static Result<PackedMatrix> PackStacked(std::span<const Part> parts, int64_t k,
                                          PanelArena* arena = nullptr);

  WeightType type() const { return type_; }
  int64_t n() const { return n_; }
  int64_t k() const { return k_; }
  size_t packed_bytes() const { return packed_bytes_; }  // all panels, the last one padded
  // [n / 32, up] panels (matmul_layout.h), 64-byte aligned, while a copy of the matrix lives.
  const std::byte* panels() const { return panels_.get(); }

  // Row `row` of W as float32 [k], exactly dequantised: the embedding look-up of a tied matrix.
  void DequantizeRow(int64_t row, std::span<float> out) const;

 private:
  WeightType type_ = WeightType::kF32;
  int64_t n_ = 0;
  int64_t k_ = 0;
  size_t packed_bytes_ = 0;
  std::shared_ptr<const std::byte> panels_;  // immutable once packed, so copies may share it
};

// The input of one or more MatMul calls: x and, made on demand by PrepareActivations, its int8
// form. Views memory of the caller's workspace (ActivationBytes), so that a step allocates nothing.
struct Activations {
  int rows = 0;
  int64_t k = 0;
  const float* x = nullptr;                 // [rows, k], null where only the int8 form was made
  const int8_t* q = nullptr;                // [rows, k], null unless quantised
  const ActivationBlock* blocks = nullptr;  // [rows, k / 32]
};
// Workspace bytes for the int8 form of [rows, k].
size_t ActivationBytes(int rows, int64_t k);
// Where in `workspace` (REQUIRES: as below) that form lies, for whoever writes it.
struct ActivationSpace {
  int8_t* q;                // [rows, k]
  ActivationBlock* blocks;  // [rows, k / 32]
};
ActivationSpace CarveActivations(int rows, int64_t k, std::span<std::byte> workspace);
// Quantises x into `workspace` (REQUIRES: ActivationBytes, 64-byte aligned, k % 32 == 0), parallel
// over rows. x must outlive the result.
Activations PrepareActivations(const KernelContext& ctx, const float* x, int rows, int64_t k,
                               std::span<std::byte> workspace);
// Activations for float weights only: no int8 form.
inline Activations FloatActivations(const float* x, int rows, int64_t k) {
  return {rows, k, x, nullptr, nullptr};
}

// y [rows, ldy] (ldy >= n floats a row; columns n.. untouched). REQUIRES: a.k == w.k(); int8 form
// present if w is quantised.
void MatMul(const KernelContext& ctx, const Activations& a, const PackedMatrix& w, float* y,
            int64_t ldy);

// MatMul of one input with several matrices, as one list of tasks: the threads wake, and wait for
// the last of them, once. Outputs do not overlap.
struct MatMulOutput {
  const PackedMatrix* w;
  float* y;
  int64_t ldy;
};
void MatMulAll(const KernelContext& ctx, const Activations& a,
               std::span<const MatMulOutput> outputs);

}  // namespace cairn
