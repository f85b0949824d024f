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
#else
constexpr int kTileVectors = 4;
#endif

template <int kVectors>
struct Columns {
  F32x16 v[kVectors];
};

template <int kVectors>
CAIRN_SIMD Columns<kVectors> ZeroColumns() {
  Columns<kVectors> c;
#pragma GCC unroll 4
  for (int j = 0; j < kVectors; ++j) c.v[j] = Zero();
  return c;
}

// The pass of row t over the tile: s = g * S into `tile`, a and b. With kFirst S comes from the
// state, otherwise from `tile` with row t - 1 finished on the way. Returns delta.
template <int kVectors, bool kFirst>
CAIRN_SIMD Columns<kVectors> PassRow(const GatedDeltaTile& p, int t, const Columns<kVectors>& last,
                                     float* tile) {
  const float* q = p.q + t * p.ldqk;
  const float* k = p.k + t * p.ldqk;
  const float* k_last = k - p.ldqk;
  const F32x16 g = Set(p.g[t * p.ldg]);
  Columns<kVectors> a = ZeroColumns<kVectors>();
  Columns<kVectors> b = a;
  for (int i = 0; i < p.dk; ++i) {
    const F32x16 ki = Set(k[i]);
    const F32x16 qi = Set(q[i]);
    const F32x16 k_last_i = kFirst ? ki : Set(k_last[i]);
    const float* from = kFirst ? p.state + i * p.ldstate : tile;
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      F32x16 s = Load(from + j * 16);
      if (!kFirst) s = Fma(k_last_i, last.v[j], s);
      s = Mul(g, s);
      a.v[j] = Fma(ki, s, a.v[j]);
      b.v[j] = Fma(qi, s, b.v[j]);
      Store(tile + j * 16, s);
    }
    tile += kVectors * 16;
  }
  const F32x16 qk = Set(Dot(q, k, p.dk));
  const F32x16 beta = Set(p.beta[t * p.ldg]);
  Columns<kVectors> delta;
#pragma GCC unroll 4
  for (int j = 0; j < kVectors; ++j) {
    delta.v[j] = Mul(beta, Sub(Load(p.v + t * p.ldv + j * 16), a.v[j]));
    Store(p.out + t * p.ldout + j * 16, Fma(qk, delta.v[j], b.v[j]));
  }
  return delta;
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

template <int kVectors>
void RunVectors(const GatedDeltaTile& p) {
  alignas(64) float tile[kDeltaKeyDimMax * kVectors * 16];
  const StateTap* tap = p.taps;
  const StateTap* const taps_end = p.taps + p.tap_count;
  Columns<kVectors> delta = ZeroColumns<kVectors>();
  for (int t = 0; t < p.rows; ++t) {
    delta = t == 0 ? PassRow<kVectors, true>(p, t, delta, tile)
                   : PassRow<kVectors, false>(p, t, delta, tile);
    for (; tap != taps_end && tap->row == t; ++tap)
      WriteState<kVectors>(p, t, delta, tile, tap->dst + p.state_offset);
  }
  WriteState<kVectors>(p, p.rows - 1, delta, tile, p.state);
}

void RunTile(const GatedDeltaTile& tile) {
  switch (tile.columns / 16) {
    case 1:
      return RunVectors<1>(tile);
    case 2:
      return RunVectors<2>(tile);
#if !defined(__AVX2__) || defined(__AVX512F__)
    case 3:
      return RunVectors<3>(tile);
    case 4:
      return RunVectors<4>(tile);
#endif
  }
}

constexpr GatedDeltaLevel kGatedDelta = {kTileVectors * 16, RunTile};

}  // namespace
}  // namespace cairn
