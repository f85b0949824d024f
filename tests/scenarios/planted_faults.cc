#include "scenarios/planted_faults.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/attention.h"
#include "kernels/conv1d.h"
#include "kernels/kernel_context.h"
#include "kernels/matmul.h"
#include "kernels/moe_ops.h"
#include "kernels/quant.h"
#include "kernels/ssd_scan.h"

namespace cairn::law {
namespace {

KernelContext WithoutFaults(const KernelContext& ctx) { return {ctx.level, ctx.pool}; }

// One query head over the keys [0, position].
class HeadReader {
 public:
  HeadReader(const AttentionShape& shape, const AttentionSlice& slice, int head)
      : shape_(shape), slice_(slice) {
    const int kv_head = head / (shape.heads / shape.kv_heads);
    offset_ = slice.layer_offset + shape.head_bytes() * static_cast<size_t>(kv_head);
  }
  float K(int64_t position, int d) const {
    return StoredKey(shape_, Head(position), static_cast<int>(position % kBlockPositions), d);
  }
  float V(int64_t position, int d) const {
    return StoredValue(shape_, Head(position), static_cast<int>(position % kBlockPositions), d);
  }

 private:
  const std::byte* Head(int64_t position) const {
    return slice_.blocks[static_cast<size_t>(position / kBlockPositions)] + offset_;
  }

  const AttentionShape& shape_;
  const AttentionSlice& slice_;
  size_t offset_;
};

// Running (max, sum, output) over segments of keys.
struct Merged {
  float max = 0, sum = 0;
  std::vector<float> out;

  void Add(const Merged& part) {
    if (out.empty()) {
      *this = part;
      return;
    }
    const float top = std::max(max, part.max);
    const float a = std::exp(max - top), b = std::exp(part.max - top);
    max = top;
    sum = std::fma(sum, a, part.sum * b);
    for (size_t d = 0; d < out.size(); ++d) out[d] = std::fma(out[d], a, part.out[d] * b);
  }
};

Merged Segment(const HeadReader& head, const float* q, float scale, int dim, int64_t begin,
               int64_t end) {
  std::vector<float> scores;
  for (int64_t j = begin; j < end; ++j) {
    float score = 0;
    for (int d = 0; d < dim; ++d) score = std::fma(q[d] * scale, head.K(j, d), score);
    scores.push_back(score);
  }
  Merged part{.max = *std::max_element(scores.begin(), scores.end()),
              .sum = 0,
              .out = std::vector<float>(static_cast<size_t>(dim), 0.0f)};
  for (int64_t j = begin; j < end; ++j) {
    const float p = std::exp(scores[static_cast<size_t>(j - begin)] - part.max);
    part.sum += p;
    for (int d = 0; d < dim; ++d) {
      float& o = part.out[static_cast<size_t>(d)];
      o = std::fma(p, head.V(j, d), o);
    }
  }
  return part;
}

}  // namespace

bool PlainAttention::Attend(const KernelContext& ctx, const AttentionShape& shape,
                            std::span<const AttentionSlice> slices, const float* q, int64_t ldq,
                            float* out, int64_t ldout) const {
  const int dim = shape.head_dim;
  for (const AttentionSlice& slice : slices) {
    ctx.pool->ParallelFor(slice.row_count * shape.heads, [&](int task, int) {
      const int row = task / shape.heads, h = task % shape.heads;
      const HeadReader head(shape, slice, h);
      const float* query = q + (slice.row_begin + row) * ldq + h * dim;
      const int64_t end = slice.position + row + 1;
      Merged all;
      for (int64_t begin = 0; begin < end;) {
        int64_t next = (begin / kSegmentPositions + 1) * kSegmentPositions;
        if (origin_ == SegmentOrigin::kChunkStart) {
          if (begin < slice.position)
            next = std::min(next, slice.position);
          else
            next = begin + kSegmentPositions;
        }
        next = std::min(next, end);
        all.Add(Segment(head, query, shape.scale, dim, begin, next));
        begin = next;
      }
      float* o = out + (slice.row_begin + row) * ldout + h * dim;
      for (int d = 0; d < dim; ++d) o[d] = all.out[static_cast<size_t>(d)] / all.sum;
    });
  }
  return true;
}

bool PerTensorScale::QuantizeRows(const float* x, int rows, int64_t k, int8_t* q,
                                  ActivationBlock* blocks) const {
  float amax = 0;
  for (int64_t i = 0; i < rows * k; ++i) amax = std::max(amax, std::fabs(x[i]));
  const float scale = amax / 127, inverse = amax > 0 ? 127 / amax : 0;
  for (int64_t b = 0; b < rows * k / 32; ++b) {
    int low = 0, sum = 0;
    for (int64_t i = b * 32; i < b * 32 + 32; ++i) {
      q[i] = static_cast<int8_t>(std::nearbyint(x[i] * inverse));
      sum += q[i];
      if (i < b * 32 + 16) low += q[i];
    }
    blocks[b] = {.scale = scale,
                 .scaled_sum = scale * static_cast<float>(sum),
                 .offset = -8 * sum,
                 .low_offset = -8 * low};
  }
  return true;
}

bool SplitKForOneRow::MatMul(const KernelContext& ctx, const Activations& a, const PackedMatrix& w,
                             float* y, int64_t /*ldy*/) const {
  const int64_t half = a.k / 2 / 32 * 32;
  if (a.rows != 1 || half == 0) return false;
  std::vector<float> sums[2];
  for (int part = 0; part < 2; ++part) {
    // The other half is zero, so it adds nothing to the accumulator.
    const int64_t begin = part == 0 ? half : 0, end = part == 0 ? a.k : half;
    std::vector<float> x(a.x, a.x + a.k);
    std::fill(x.begin() + begin, x.begin() + end, 0.0f);
    Activations input = FloatActivations(x.data(), 1, a.k);
    AlignedBuffer q(static_cast<size_t>(a.k));
    std::vector<ActivationBlock> blocks;
    if (a.q != nullptr) {
      std::memcpy(q.data(), a.q, static_cast<size_t>(a.k));
      std::memset(q.data() + begin, 0, static_cast<size_t>(end - begin));
      blocks.assign(a.blocks, a.blocks + a.k / 32);
      std::fill(blocks.begin() + begin / 32, blocks.begin() + end / 32, ActivationBlock{});
      input.q = reinterpret_cast<const int8_t*>(q.data());
      input.blocks = blocks.data();
    }
    sums[part].resize(static_cast<size_t>(w.n()));
    cairn::MatMul(WithoutFaults(ctx), input, w, sums[part].data(), w.n());
  }
  for (size_t i = 0; i < sums[0].size(); ++i) y[i] = sums[0][i] + sums[1][i];
  return true;
}

bool ConvTapOneRowOff::Conv1d(const KernelContext& ctx, const Conv1dShape& shape,
                              std::span<const RecurrentSlice> slices, const float* u, int64_t ldu,
                              std::span<const float> w, std::span<const float> bias, float* y,
                              int64_t ldy) const {
  std::vector<RecurrentSlice> moved(slices.begin(), slices.end());
  std::vector<std::vector<StateTap>> taps;
  for (RecurrentSlice& slice : moved) {
    taps.emplace_back(slice.taps.begin(), slice.taps.end());
    for (StateTap& tap : taps.back()) tap.row = std::max(0, tap.row - 1);
    slice.taps = taps.back();
  }
  cairn::Conv1d(WithoutFaults(ctx), shape, moved, u, ldu, w, bias, y, ldy);
  return true;
}

bool ExpertCapacity::RouteExperts(const KernelContext& ctx, const RouterShape& shape, float* logits,
                                  int64_t ld, const float* bias, int rows, int32_t* ids,
                                  float* weights) const {
  cairn::RouteExperts(WithoutFaults(ctx), shape, logits, ld, bias, rows, ids, weights);
  // The usual factor, 1.25 of a fair share.
  const int capacity = std::max(1, rows * shape.used * 5 / (4 * shape.experts));
  std::vector<int> taken(static_cast<size_t>(shape.experts), 0);
  for (int i = 0; i < rows * shape.used; ++i) {
    if (++taken[static_cast<size_t>(ids[i])] > capacity) weights[i] = 0;
  }
  return true;
}

bool ScanTapAtTheEnd::SsdScan(const KernelContext& ctx, const SsdShape& shape,
                              std::span<const RecurrentSlice> slices, const float* u,
                              const float* b, const float* c, int64_t ld, const float* dt,
                              const float* decay, const float* d, float* out, int64_t ldout) const {
  std::vector<RecurrentSlice> moved(slices.begin(), slices.end());
  std::vector<std::vector<StateTap>> taps;
  for (RecurrentSlice& slice : moved) {
    taps.emplace_back(slice.taps.begin(), slice.taps.end());
    for (StateTap& tap : taps.back()) tap.row = slice.row_count - 1;
    slice.taps = taps.back();
  }
  cairn::SsdScan(WithoutFaults(ctx), shape, moved, u, b, c, ld, dt, decay, d, out, ldout);
  return true;
}

}  // namespace cairn::law
