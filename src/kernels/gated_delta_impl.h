// The body of gated_delta_{ref,avx2,avx512}.cc; gated_delta.h gives the definition.
//
// A tile is [dk][16 kVectors] floats and stays in L1 over all rows of the slice. The pass of row t
// first finishes row t - 1 (S = fma(k, delta, s)), so that each element is loaded and stored once a
// row: 1 load, 1 store, 4 operations a vector. 2 kVectors accumulators on two FMA pipes of latency
// 4 need 8 vectors in flight: 4 zmm, or 2 x 2 ymm, whose a, b and delta also fit the registers.
#pragma once

#include "kernels/gated_delta_levels.h"
#include "kernels/simd16.h"

namespace cairn {
namespace {

#if defined(__AVX2__) && !defined(__AVX512F__)
constexpr int kTileVectors = 2;
constexpr int kSingleRowVectors = 2;
#else
constexpr int kTileVectors = 4;
constexpr int kSingleRowVectors = 8;  // no delta to carry: whole rows of dv = 128
#endif

template <int kVectors>
struct Columns {
  F32x16 v[kVectors];
};

template <int kVectors>
CAIRN_SIMD Columns<kVectors> ZeroColumns() {
  Columns<kVectors> c;
#pragma GCC unroll 8
  for (int j = 0; j < kVectors; ++j) c.v[j] = Zero();
  return c;
}

// g of key channel i: of the head, or its own. One load either way: a vector kept over the loop
// goes through the stack with AVX2, in halves that no load of the whole can be forwarded from.
template <bool kChannels>
CAIRN_SIMD F32x16 Decay(const float* g, int i) {
  return Set(g[kChannels ? i : 0]);
}

// delta and out of row t, columns from `column` on, from its a and b.
template <int kVectors>
CAIRN_SIMD Columns<kVectors> FinishRow(const GatedDeltaTile& p, int t, int column, float qk,
                                       const Columns<kVectors>& a, const Columns<kVectors>& b) {
  const float* v = p.v + t * p.ldv + column;
  float* out = p.out + t * p.ldout + column;
  const F32x16 beta = Set(p.beta[t * p.ldbeta]);
  Columns<kVectors> delta;
#pragma GCC unroll 8
  for (int j = 0; j < kVectors; ++j) {
    delta.v[j] = Mul(beta, Sub(Load(v + j * 16), a.v[j]));
    Store(out + j * 16, Fma(Set(qk), delta.v[j], b.v[j]));
  }
  return delta;
}

// The pass of row t over the tile: s = g * S into `tile`, a and b. With kFirst S comes from the
// state, otherwise from `tile` with row t - 1 finished on the way. Returns delta.
template <int kVectors, bool kChannels, bool kFirst>
CAIRN_SIMD Columns<kVectors> PassRow(const GatedDeltaTile& p, int t, const Columns<kVectors>& last,
                                     float* tile) {
  const float* q = p.q + t * p.ldqk;
  const float* k = p.k + t * p.ldqk;
  const float* k_last = k - p.ldqk;
  const float* g = p.g + t * p.ldg;
  Columns<kVectors> a = ZeroColumns<kVectors>();
  Columns<kVectors> b = a;
  for (int i = 0; i < p.dk; ++i) {
    const F32x16 gi = Decay<kChannels>(g, i);
    const F32x16 ki = Set(k[i]);
    const F32x16 qi = Set(q[i]);
    const F32x16 k_last_i = kFirst ? ki : Set(k_last[i]);
    const float* from = kFirst ? p.state + i * p.ldstate : tile;
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      F32x16 s = Load(from + j * 16);
      if (!kFirst) s = Fma(k_last_i, last.v[j], s);
      s = Mul(gi, s);
      a.v[j] = Fma(ki, s, a.v[j]);
      b.v[j] = Fma(qi, s, b.v[j]);
      Store(tile + j * 16, s);
    }
    tile += kVectors * 16;
  }
  return FinishRow<kVectors>(p, t, 0, Dot(q, k, p.dk), a, b);
}

// Writes the state after row t: the update that the pass of row t + 1 would fold in.
template <int kVectors>
CAIRN_SIMD void WriteState(const GatedDeltaTile& p, int t, const Columns<kVectors>& delta,
                           const float* tile, float* state) {
  const float* k = p.k + t * p.ldqk;
  for (int i = 0; i < p.dk; ++i) {
    const F32x16 ki = Set(k[i]);
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j)
      Store(state + j * 16, Fma(ki, delta.v[j], Load(tile + j * 16)));
    tile += kVectors * 16;
    state += p.ldstate;
  }
}

// Rows lie a whole activation row (tens of KiB) apart, where no hardware prefetcher follows; a pass
// is long enough to fetch the next row's q, k and v from memory.
CAIRN_SIMD void PrefetchRow(const GatedDeltaTile& p, int t) {
  if (t >= p.rows) return;
  for (int i = 0; i < p.dk; i += 16) {
    __builtin_prefetch(p.q + t * p.ldqk + i);
    __builtin_prefetch(p.k + t * p.ldqk + i);
  }
  for (int i = 0; p.channel_decay && i < p.dk; i += 16) __builtin_prefetch(p.g + t * p.ldg + i);
  for (int i = 0; i < p.columns; i += 16) {
    __builtin_prefetch(p.v + t * p.ldv + i);
    __builtin_prefetch(p.out + t * p.ldout + i, 1);
  }
}

template <int kVectors, bool kChannels>
void RunRows(const GatedDeltaTile& p) {
  alignas(64) float tile[kDeltaKeyDimMax * kVectors * 16];
  const StateTap* tap = p.taps;
  const StateTap* const taps_end = p.taps + p.tap_count;
  Columns<kVectors> delta = ZeroColumns<kVectors>();
  for (int t = 0; t < p.rows; ++t) {
    PrefetchRow(p, t + 1);
    delta = t == 0 ? PassRow<kVectors, kChannels, true>(p, t, delta, tile)
                   : PassRow<kVectors, kChannels, false>(p, t, delta, tile);
    for (; tap != taps_end && tap->row == t; ++tap)
      WriteState<kVectors>(p, t, delta, tile, tap->dst + p.state_offset);
  }
  WriteState<kVectors>(p, p.rows - 1, delta, tile, p.state);
}

// delta of 16 kVectors columns of a single row, from `column` on; writes their out.
template <int kVectors, bool kChannels>
CAIRN_SIMD void FirstPass(const GatedDeltaTile& p, int column, float qk, float* delta) {
  const float* g = p.g;
  Columns<kVectors> a = ZeroColumns<kVectors>();
  Columns<kVectors> b = a;
  const float* from = p.state + column;
  for (int i = 0; i < p.dk; ++i) {
    const F32x16 gi = Decay<kChannels>(g, i);
    const F32x16 ki = Set(p.k[i]);
    const F32x16 qi = Set(p.q[i]);
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) {
      const F32x16 s = Mul(gi, Load(from + j * 16));
      a.v[j] = Fma(ki, s, a.v[j]);
      b.v[j] = Fma(qi, s, b.v[j]);
    }
    from += p.ldstate;
  }
  const Columns<kVectors> d = FinishRow<kVectors>(p, 0, column, qk, a, b);
#pragma GCC unroll 8
  for (int j = 0; j < kVectors; ++j) Store(delta + column + j * 16, d.v[j]);
}

// One row (decode): every element comes from memory once anyway, so no tile is kept. The second
// pass finds the state in L2, computes g * S again, and fetches the next head's state meanwhile.
template <bool kChannels>
void RunSingleRow(const GatedDeltaTile& p) {
  alignas(64) float delta[kDeltaSingleRowColumns];
  const float qk = Dot(p.q, p.k, p.dk);
  int column = 0;
  for (; column + kSingleRowVectors * 16 <= p.columns; column += kSingleRowVectors * 16)
    FirstPass<kSingleRowVectors, kChannels>(p, column, qk, delta);
  for (; column < p.columns; column += 16) FirstPass<1, kChannels>(p, column, qk, delta);

  const float* g = p.g;
  const auto write = [&](float* to) {
    for (int i = 0; i < p.dk; ++i) {
      const F32x16 gi = Decay<kChannels>(g, i);
      const F32x16 ki = Set(p.k[i]);
      const float* from = p.state + i * p.ldstate;
      for (int c = 0; c < p.columns; c += 16) {
        if (p.next_state != nullptr) __builtin_prefetch(p.next_state + i * p.ldstate + c, 0, 2);
        Store(to + i * p.ldstate + c, Fma(ki, Load(delta + c), Mul(gi, Load(from + c))));
      }
    }
  };
  for (int i = 0; i < p.tap_count; ++i) write(p.taps[i].dst + p.state_offset);
  write(p.state);
}

template <bool kChannels>
void RunDecay(const GatedDeltaTile& p) {
  if (p.rows == 1) return RunSingleRow<kChannels>(p);
  switch (p.columns / 16) {
    case 1:
      return RunRows<1, kChannels>(p);
    case 2:
      return RunRows<2, kChannels>(p);
#if !defined(__AVX2__) || defined(__AVX512F__)
    case 3:
      return RunRows<3, kChannels>(p);
    case 4:
      return RunRows<4, kChannels>(p);
#endif
  }
}

void RunTile(const GatedDeltaTile& p) { p.channel_decay ? RunDecay<true>(p) : RunDecay<false>(p); }

constexpr GatedDeltaLevel kGatedDelta = {kTileVectors * 16, RunTile};

}  // namespace
}  // namespace cairn
