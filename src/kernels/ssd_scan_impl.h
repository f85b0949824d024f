// The body of ssd_scan_{ref,avx2,avx512}.cc; ssd_scan.h gives the definition.
//
// A tile's state is used in place: 1 load, 1 store, 3 operations a vector and row. kTileVectors
// sums on two pipes of latency 4 need 8 vectors in flight counting the updates: 4 zmm, or 2 x 2
// ymm whose x, decay and sums also fit the registers. kPieceStates states of 4 zmm (64 floats) are
// 16 KiB, half of the smallest L1.
#pragma once

#include "kernels/ssd_scan_levels.h"
#include "kernels/vector_math.h"

namespace cairn {
namespace {

#if defined(__AVX2__) && !defined(__AVX512F__)
constexpr int kTileVectors = 2;
#else
constexpr int kTileVectors = 4;
#endif
constexpr int kPieceStates = 4096 / (kTileVectors * 16);

// The channels of a vector: all 16, or its first ones.
template <bool kWhole>
struct Channels {
  int n;
  CAIRN_SIMD F32x16 load(const float* p) const { return kWhole ? Load(p) : LoadN(p, n); }
  CAIRN_SIMD void store(float* p, F32x16 a) const { kWhole ? Store(p, a) : StoreN(p, a, n); }
};

// Rows lie a whole activation row (several KiB) apart, where no hardware prefetcher follows.
CAIRN_SIMD void PrefetchRow(const SsdTile& p, int t, int begin, int end) {
  if (t >= p.rows) return;
  for (int n = begin; n < end; n += 16) {
    __builtin_prefetch(p.b + t * p.ld + n);
    __builtin_prefetch(p.c + t * p.ld + n);
  }
  for (int j = 0; j < p.vector_count; ++j) {
    __builtin_prefetch(p.vectors[j].u + t * p.ld);
    __builtin_prefetch(p.vectors[j].out + t * p.ldout, 1);
  }
}

// Row t over the states [begin, end).
template <int kVectors, bool kWhole, bool kFetchNext>
CAIRN_SIMD void PassRow(const SsdTile& p, int t, int begin, int end) {
  F32x16 x[kVectors], decay[kVectors], y[kVectors];
  float* state[kVectors];
  const float* next[kVectors];
#pragma GCC unroll 4
  for (int j = 0; j < kVectors; ++j) {
    const SsdVector& v = p.vectors[j];
    const Channels<kWhole> channels{v.lanes};
    x[j] = Mul(Set(v.dt[t * p.ldg]), channels.load(v.u + t * p.ld));
    decay[j] = Set(v.decay[t * p.ldg]);
    y[j] = begin == 0 ? Zero() : channels.load(v.out + t * p.ldout);
    state[j] = v.state + begin * p.ldstate;
    next[j] = v.next_state;
  }
  const float* b = p.b + t * p.ld;
  const float* c = p.c + t * p.ld;
  const int64_t ldstate = p.ldstate;
  for (int n = begin; n < end; ++n) {
    const F32x16 bn = Set(b[n]);
    const F32x16 cn = Set(c[n]);
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      const Channels<kWhole> channels{p.vectors[j].lanes};
      const F32x16 s = Fma(x[j], bn, Mul(decay[j], channels.load(state[j])));
      y[j] = Fma(cn, s, y[j]);
      channels.store(state[j], s);
      state[j] += ldstate;
      if (kFetchNext) {
        __builtin_prefetch(next[j], 0, 2);
        next[j] += ldstate;
      }
    }
  }
#pragma GCC unroll 4
  for (int j = 0; j < kVectors; ++j) {
    const SsdVector& v = p.vectors[j];
    const Channels<kWhole> channels{v.lanes};
    if (end == p.states) y[j] = Fma(Set(v.skip), channels.load(v.u + t * p.ld), y[j]);
    channels.store(v.out + t * p.ldout, y[j]);
  }
}

template <int kVectors, bool kWhole>
CAIRN_SIMD void WriteTap(const SsdTile& p, int begin, int end, float* dst) {
  for (int j = 0; j < kVectors; ++j) {
    const SsdVector& v = p.vectors[j];
    const Channels<kWhole> channels{v.lanes};
    for (int64_t n = begin; n < end; ++n)
      channels.store(dst + v.state_offset + n * p.ldstate, channels.load(v.state + n * p.ldstate));
  }
}

template <int kVectors, bool kWhole>
void RunRows(const SsdTile& p) {
  if (p.rows == 1) {  // decode: every element comes from memory once anyway
    p.vectors[0].next_state != nullptr ? PassRow<kVectors, kWhole, true>(p, 0, 0, p.states)
                                       : PassRow<kVectors, kWhole, false>(p, 0, 0, p.states);
    for (int i = 0; i < p.tap_count; ++i) WriteTap<kVectors, kWhole>(p, 0, p.states, p.taps[i].dst);
    return;
  }
  for (int begin = 0; begin < p.states; begin += kPieceStates) {
    const int end = begin + kPieceStates < p.states ? begin + kPieceStates : p.states;
    const StateTap* tap = p.taps;
    const StateTap* const taps_end = p.taps + p.tap_count;
    for (int t = 0; t < p.rows; ++t) {
      PrefetchRow(p, t + 1, begin, end);
      PassRow<kVectors, kWhole, false>(p, t, begin, end);
      for (; tap != taps_end && tap->row == t; ++tap)
        WriteTap<kVectors, kWhole>(p, begin, end, tap->dst);
    }
  }
}

template <bool kWhole>
void RunVectors(const SsdTile& p) {
  switch (p.vector_count) {
    case 1:
      return RunRows<1, kWhole>(p);
    case 2:
      return RunRows<2, kWhole>(p);
#if !defined(__AVX2__) || defined(__AVX512F__)
    case 3:
      return RunRows<3, kWhole>(p);
    case 4:
      return RunRows<4, kWhole>(p);
#endif
  }
}

void RunSsdTile(const SsdTile& p) { p.whole ? RunVectors<true>(p) : RunVectors<false>(p); }

void RunSsdGates(const float* raw, int64_t ld, const float* dt_bias, const float* a_neg,
                 SsdStepLimits limits, int rows, int heads, float* dt, float* decay) {
  for (int r = 0; r < rows; ++r) {
    const float* from = raw + r * ld;
    float* to_dt = dt + int64_t{r} * heads;
    float* to_decay = decay + int64_t{r} * heads;
    ForLanes(heads, [&](auto lanes, int64_t h) {
      F32x16 step = Softplus(Add(lanes.load(from + h), lanes.load(dt_bias + h)));
      step = Max(Like(step, limits.min), Min(Like(step, limits.max), step));  // NaN passes
      lanes.store(to_dt + h, step);
      lanes.store(to_decay + h, Exp(Mul(lanes.load(a_neg + h), step)));
    });
  }
}

constexpr SsdScanLevel kSsdScan = {kTileVectors, RunSsdTile, RunSsdGates};

}  // namespace
}  // namespace cairn
