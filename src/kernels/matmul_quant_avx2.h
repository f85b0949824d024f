// Internal to matmul_avx2.cc and matmul_affine_avx2.cc, compiled with AVX2, FMA and F16C: quantised
// panels. Intrinsics, plain structs and an anonymous namespace only.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/matmul_avx2_tile.h"
#include "kernels/matmul_layout.h"
#include "kernels/matmul_panel.h"

namespace cairn {
namespace {

// Blocks unpacked at a time, reused over all rows: the 16 KiB of a pass stay in the L1 cache.
// Fewer cost more starts and ends of tiles than the cache gives back.
constexpr int kBlocksUnpacked = 64;
constexpr int kPassColumns = 16;  // of a pass over the rows: 4 rows x 2 vectors fit the registers

template <typename F>
INLINE void PrefetchBlock(const uint8_t* panel, int64_t b) {
  constexpr int kBytes = F::kGroupBytes / F::kGroup;  // a block and its share of the header
#pragma GCC unroll 18
  for (int i = 0; i < kBytes; i += 64) _mm_prefetch(panel + b * kBytes + i, _MM_HINT_T0);
}

// Integers of quad Q of a packed block, vector v of 4: columns 8 v .. 8 v + 7.
template <typename F, int Q>
INLINE __m256i LoadQuad(const uint8_t* quants, int v) {
  if constexpr (F::kBits == 8) {
    return _mm256_xor_si256(Load(quants + Q * 128 + v * 32), _mm256_set1_epi8(-128));  // signed
  }
  __m256i w = Load(quants + Q * 64 + v % 2 * 32);
  if (v >= 2) w = _mm256_srli_epi16(w, 4);
  w = _mm256_and_si256(w, _mm256_set1_epi8(15));
  if constexpr (F::kBits == 5 || F::kBits == 6) {
    constexpr int kBit = F::kBits == 5 ? Q : Q % 4 * 2;
    __m256i p = Load(quants + kPlaneOffset + (F::kBits == 5 ? 0 : Q / 4 * 128) + v * 32);
    if constexpr (kBit < 4) p = _mm256_slli_epi16(p, 4 - kBit);
    if constexpr (kBit > 4) p = _mm256_srli_epi16(p, kBit - 4);
    w = _mm256_or_si256(w, _mm256_and_si256(p, _mm256_set1_epi8(F::kBits == 5 ? 0x10 : 0x30)));
  }
  return w;
}

// Scales or offsets of an affine group, columns 8 v .. 8 v + 7.
template <typename F>
INLINE __m256 LoadAffine(const uint8_t* p, int v) {
  if constexpr (F::kNumber == AffineNumber::kF16) {
    return HalvesToFloats(p + v * 16);
  } else if constexpr (F::kNumber == AffineNumber::kBF16) {
    const __m128i bits = _mm_load_si128(reinterpret_cast<const __m128i*>(p + v * 16));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  } else {
    return _mm256_load_ps(reinterpret_cast<const float*>(p) + v * 8);
  }
}

// Scales of block b (of its lower or upper half), `kCount` vectors from kFirst on.
template <typename F, int kFirst, int kCount>
INLINE void LoadScales(const uint8_t* panel, int64_t b, int half, __m256* out) {
  const uint8_t* header = GroupHeader<F>(panel, b);
  const int i = static_cast<int>(b % F::kGroup);
  alignas(32) uint8_t six[32];
  if constexpr (F::kScales == Scales::kSixBit) {
    const __m256i low = Load(header + kHeaderLow + i * 32);
    const __m256i high = Load(header + kHeaderHigh + i / 2 * 32);
    const __m256i two =
        _mm256_and_si256(_mm256_slli_epi16(_mm256_srl_epi16(high, _mm_cvtsi32_si128(i % 2 * 4)), 4),
                         _mm256_set1_epi8(0x30));
    _mm256_store_si256(reinterpret_cast<__m256i*>(six),
                       _mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi8(15)), two));
  }
  for (int o = 0; o < kCount; ++o) {
    const int v = kFirst + o;
    if constexpr (F::kScales == Scales::kAffine) {
      out[o] = LoadAffine<F>(header, v);
      continue;
    }
    out[o] = HalvesToFloats(header + v * 16);
    if constexpr (F::kScales == Scales::kSixBit) {
      out[o] = _mm256_mul_ps(out[o], BytesToFloats(six + v * 8));
    } else if constexpr (F::kScales == Scales::kHalves) {
      const uint8_t* s = header + kHeaderScales + (2 * i + half) * 32 + v * 8;
      out[o] = _mm256_mul_ps(out[o], _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(
                                         _mm_loadl_epi64(reinterpret_cast<const __m128i*>(s)))));
    }
  }
}

// Minima of block b, their sign folded in.
template <typename F, int kFirst, int kCount>
INLINE void LoadMins(const uint8_t* panel, int64_t b, __m256* out) {
  const uint8_t* header = GroupHeader<F>(panel, b);
  alignas(32) uint8_t six[32];
  if constexpr (F::kScales == Scales::kSixBit) {
    const int i = static_cast<int>(b % F::kGroup);
    const __m256i low = Load(header + kHeaderLow + i * 32);
    const __m256i high = Load(header + kHeaderHigh + i / 2 * 32);
    const __m256i two =
        _mm256_and_si256(_mm256_slli_epi16(_mm256_srl_epi16(high, _mm_cvtsi32_si128(i % 2 * 4)), 2),
                         _mm256_set1_epi8(0x30));
    const __m256i four = _mm256_and_si256(_mm256_srli_epi16(low, 4), _mm256_set1_epi8(15));
    _mm256_store_si256(reinterpret_cast<__m256i*>(six), _mm256_or_si256(four, two));
  }
  for (int o = 0; o < kCount; ++o) {
    const int v = kFirst + o;
    if constexpr (F::kScales == Scales::kAffine) {
      out[o] = LoadAffine<F>(header + F::kBiasOffset, v);
      continue;
    }
    out[o] = HalvesToFloats(header + kHeaderMin + v * 16);
    if constexpr (F::kScales == Scales::kSixBit) {
      out[o] =
          _mm256_xor_ps(_mm256_mul_ps(out[o], BytesToFloats(six + v * 8)), _mm256_set1_ps(-0.0f));
    }
  }
}

// Blocks of a panel as they lie packed; unpacked in registers on every use. All 32 columns, or
// (kVectors = 2) the 16 from 8 kFirst on.
template <typename F, int kFirst, int kVectorCount>
struct PackedSource {
  static constexpr bool kUnpacked = false;
  static constexpr int kVectors = kVectorCount;
  const uint8_t* panel;
  template <int Q>
  INLINE void Quad(const uint8_t* block, __m256i* w) const {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) w[v] = LoadQuad<F, Q>(block, kFirst + v);
  }
  INLINE const uint8_t* Block(int64_t b) const {
    // Headers and quants are two streams, which confuses the hardware's prefetcher (a third of the
    // bandwidth is left). Touching the lines in the order they lie, neither ahead nor behind, keeps
    // it going; farther ahead is slower.
    if constexpr (F::kGroup > 1) PrefetchBlock<F>(panel, b);
    return BlockQuants<F>(panel, b);
  }
  INLINE void Scale(int64_t b, int half, __m256* out) const {
    LoadScales<F, kFirst, kVectors>(panel, b, half, out);
  }
  INLINE void Min(int64_t b, __m256* out) const { LoadMins<F, kFirst, kVectors>(panel, b, out); }
  INLINE void StopFetching() {}
};

// 8-bit weights are unpacked to int16: vpmaddwd takes 2 multiplications a quad, where |u| * sign(x,
// u) widened at once takes 3 (multiplications share two pipes, and vpsignb is one).
template <typename F>
constexpr bool kWide = F::kBits == 8;
template <typename F>
constexpr int kPassBytes = kTileBytes / (kWide<F> ? 1 : 2);  // of a block

// A few blocks unpacked into bytes and float scales: [pass][block][8 quads][64] or, wide,
// [pass][block][16 pairs][64].
template <typename F>
struct Unpacked {
  alignas(64) uint8_t tile[2 * kBlocksUnpacked * kPassBytes<F>];
  alignas(64) float scale[kBlocksUnpacked * kPanelColumns];
  alignas(64) float other[kBlocksUnpacked * kPanelColumns];  // minimum, or scale of the upper half
};
// The columns of a pass.
template <typename F>
struct UnpackedSource {
  static constexpr bool kUnpacked = true;
  static constexpr int kVectors = 2;
  const uint8_t* tile;
  const float* scale;
  const float* other;
  // The packed blocks after these, fetched while the first tile runs, so that memory and
  // arithmetic overlap; null for the other tiles. Past the last panel it fetches in vain.
  const uint8_t* ahead;

  template <int Q>
  INLINE void Quad(const uint8_t* block, __m256i* w) const {
    w[0] = Load(block + Q * 64);
    w[1] = Load(block + Q * 64 + 32);
  }
  INLINE const uint8_t* Block(int64_t b) const {
    if (ahead != nullptr) PrefetchBlock<F>(ahead, b);
    return tile + b * kPassBytes<F>;
  }
  INLINE void Scale(int64_t b, int half, __m256* out) const {
    LoadFloats((half == 0 ? scale : other) + b * 32, out);
  }
  INLINE void Min(int64_t b, __m256* out) const { LoadFloats(other + b * 32, out); }
  INLINE void StopFetching() { ahead = nullptr; }
  INLINE static void LoadFloats(const float* p, __m256* out) {
    for (int v = 0; v < kVectors; ++v) out[v] = _mm256_load_ps(p + 8 * v);
  }
};

// `tile` is of the first pass.
template <typename F, int Q>
INLINE void UnpackQuad(const uint8_t* quants, uint8_t* tile) {
  constexpr int kPass = kBlocksUnpacked * kPassBytes<F>;
  for (int v = 0; v < 4; ++v) {
    if constexpr (kWide<F>) {
      // Bytes 0 and 1 of every 4 made 16 bits, then bytes 2 and 3.
      constexpr int64_t kFirst = static_cast<int64_t>(0x8005800480018000);
      constexpr int64_t kNext = kFirst + 0x0008000800080008;
      const __m256i first = _mm256_set_epi64x(kNext, kFirst, kNext, kFirst);
      const __m256i second = _mm256_add_epi8(first, _mm256_set1_epi16(2));
      const __m256i u = Load(quants + Q * 128 + v * 32);
      uint8_t* p = tile + v / 2 * kPass + Q * 128 + v % 2 * 32;
      StoreBytes(p, _mm256_shuffle_epi8(u, first));
      StoreBytes(p + 64, _mm256_shuffle_epi8(u, second));
    } else {
      StoreBytes(tile + v / 2 * kPass + Q * 64 + v % 2 * 32, LoadQuad<F, Q>(quants, v));
    }
  }
}

template <typename F>
void Unpack(const uint8_t* panel, int64_t begin, int count, Unpacked<F>* out) {
  for (int b = 0; b < count; ++b) {
    const uint8_t* quants = BlockQuants<F>(panel, begin + b);
    uint8_t* tile = out->tile + b * kPassBytes<F>;
    UnpackQuad<F, 0>(quants, tile);
    UnpackQuad<F, 1>(quants, tile);
    UnpackQuad<F, 2>(quants, tile);
    UnpackQuad<F, 3>(quants, tile);
    UnpackQuad<F, 4>(quants, tile);
    UnpackQuad<F, 5>(quants, tile);
    UnpackQuad<F, 6>(quants, tile);
    UnpackQuad<F, 7>(quants, tile);
    __m256 v[4];
    LoadScales<F, 0, 4>(panel, begin + b, 0, v);
    StoreFloats(out->scale + b * 32, v);
    if constexpr (F::kHalves) LoadScales<F, 0, 4>(panel, begin + b, 1, v);
    if constexpr (F::kMin) LoadMins<F, 0, 4>(panel, begin + b, v);
    if constexpr (F::kHalves || F::kMin) StoreFloats(out->other + b * 32, v);
  }
}

// Rows, and the place of their sums.
struct Tile {
  const int8_t* q;
  int64_t ldq;
  const ActivationBlock* blocks;
  int64_t ld_blocks;
  float* y;
  int64_t ldy;
  int columns;  // that exist from y on; a vector beyond is not touched
};

template <typename F>
INLINE __m256i Offset(const ActivationBlock& a, int half) {
  __m256i v = _mm256_set1_epi32(half == 1 || !F::kHalves ? a.offset : a.low_offset);
  if (half == 1) v = _mm256_sub_epi32(v, _mm256_set1_epi32(a.low_offset));
  return _mm256_slli_epi32(v, F::kZeroShift);
}

// 6 bits: sums of u - 32 over a half block fit int16 (32,512), sums of u do not. vpaddw wraps, so
// starting from minus 32 times the sums of the activations gives the first from the second.
template <typename F>
constexpr bool kCentred = F::kBits == 6;

// vpmaddubsw gives int16 sums of two products; how many quads of them fit int16: 4 bits: 8
// (30,480), 5 bits: 4 (31,496). 8 bits: one product pair of |w| <= 128 (32,512), so each is widened
// at once.
template <typename F>
constexpr int kQuadsPerSum = F::kBits == 4   ? 8
                             : F::kBits == 8 ? 1
                                             : 4;

// Of a row's block: the centre's int16 sums of the lower and of the upper half, four times each.
INLINE void StoreCentre(const int8_t* q, uint8_t* out) {
  const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(q));
  __m256i s = _mm256_maddubs_epi16(_mm256_set1_epi8(32), x);
  s = _mm256_add_epi16(s, _mm256_shuffle_epi32(s, 0x4e));
  s = _mm256_add_epi16(s, _mm256_shuffle_epi32(s, 0xb1));
  _mm256_store_si256(reinterpret_cast<__m256i*>(out), s);
}
INLINE __m256i LoadCentre(const uint8_t* p) {
  return _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(p)));
}

// Adds quad Q to the sums of R rows.
template <typename F, int R, int Q, int V, typename Source>
INLINE void AddQuad(const Source& source, const uint8_t* block, const int8_t* q, int64_t ldq,
                    const uint8_t* centre, __m256i (*pairs)[V], __m256i (*sum)[V]) {
  constexpr int kStep = kQuadsPerSum<F>;
  constexpr int kPartQuads = F::kHalves ? 4 : 8;
  const __m256i one = _mm256_set1_epi16(1);
  __m256i w[V];
  source.template Quad<Q>(block, w);
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
    int word;
    __builtin_memcpy(&word, q + r * ldq + Q * 4, sizeof word);
    const __m256i x = _mm256_set1_epi32(word);
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      __m256i p;
      if constexpr (F::kBits == 8) {
        p = _mm256_maddubs_epi16(_mm256_abs_epi8(w[v]), _mm256_sign_epi8(x, w[v]));
      } else {
        p = _mm256_maddubs_epi16(w[v], x);
      }
      if constexpr (kCentred<F> && Q % kPartQuads == 0) {
        p = _mm256_sub_epi16(p, LoadCentre(centre + r * 32));
      }
      pairs[r][v] = Q % kStep == 0 ? p : _mm256_add_epi16(pairs[r][v], p);
      Pin(pairs[r][v]);
      if constexpr (Q % kStep == kStep - 1) {
        const __m256i wide = _mm256_madd_epi16(pairs[r][v], one);
        sum[r][v] = Q % kPartQuads < kStep ? wide : _mm256_add_epi32(sum[r][v], wide);
        Pin(sum[r][v]);
      }
    }
  }
}

// The sums of a block or, with kHalves, of its lower or upper half.
template <typename F, int R, int V, typename Source>
INLINE void AddPart(const Source& source, const uint8_t* block, const int8_t* q, int64_t ldq,
                    const uint8_t* centre, int part, __m256i (*sum)[V]) {
  __m256i pairs[R][V];
  if (part == 0) {
    AddQuad<F, R, 0, V>(source, block, q, ldq, centre, pairs, sum);
    AddQuad<F, R, 1, V>(source, block, q, ldq, centre, pairs, sum);
    AddQuad<F, R, 2, V>(source, block, q, ldq, centre, pairs, sum);
    AddQuad<F, R, 3, V>(source, block, q, ldq, centre, pairs, sum);
  }
  if (part == 1 || !F::kHalves) {
    AddQuad<F, R, 4, V>(source, block, q, ldq, centre, pairs, sum);
    AddQuad<F, R, 5, V>(source, block, q, ldq, centre, pairs, sum);
    AddQuad<F, R, 6, V>(source, block, q, ldq, centre, pairs, sum);
    AddQuad<F, R, 7, V>(source, block, q, ldq, centre, pairs, sum);
  }
}

// Activations of a row's block as int16.
INLINE void StoreWide(const int8_t* q, int16_t* out) {
  const __m128i* p = reinterpret_cast<const __m128i*>(q);
  __m256i* o = reinterpret_cast<__m256i*>(out);
  _mm256_store_si256(o, _mm256_cvtepi8_epi16(_mm_loadu_si128(p)));
  _mm256_store_si256(o + 1, _mm256_cvtepi8_epi16(_mm_loadu_si128(p + 1)));
}
// The sums of a block of int16 weights.
template <int R, int V>
INLINE void AddWide(const uint8_t* block, const int8_t* q, int64_t ldq, __m256i (*sum)[V]) {
  alignas(32) int16_t x[R * kBlockK];
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) StoreWide(q + r * ldq, x + r * kBlockK);
  // Else g++ takes the pairs from registers, with two shuffles each.
  __asm__("" : "+m"(x));
#pragma GCC unroll 16
  for (int p = 0; p < kBlockK / 2; ++p) {
    const __m256i w[2] = {Load(block + p * 64), Load(block + p * 64 + 32)};
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      int word;
      __builtin_memcpy(&word, x + r * kBlockK + p * 2, sizeof word);
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) {
        const __m256i m = _mm256_madd_epi16(w[v], _mm256_set1_epi32(word));
        sum[r][v] = p == 0 ? m : _mm256_add_epi32(sum[r][v], m);
        Pin(sum[r][v]);
      }
    }
  }
}

// `count` blocks of R rows. The sums start at zero or, continues, from y.
template <typename F, int R, typename Source>
inline void RunTile(const Source& source, int64_t count, const Tile& t, bool continues) {
  constexpr int V = Source::kVectors;
  constexpr int kParts = F::kHalves ? 2 : 1;
  __m256 acc[R][V];
  LoadSums<R, V>(t.y, t.ldy, t.columns, continues, acc);
  for (int64_t b = 0; b < count; ++b) {
    const uint8_t* block = source.Block(b);
    const int8_t* q = t.q + b * kBlockK;
    const ActivationBlock* a = t.blocks + b;
    alignas(32) uint8_t centre[R * 32];
    if constexpr (kCentred<F>) {
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) StoreCentre(q + r * t.ldq, centre + r * 32);
    }
#pragma GCC unroll 2
    for (int part = 0; part < kParts; ++part) {
      __m256i sum[R][V];
      if constexpr (kWide<F> && Source::kUnpacked) {
        AddWide<R, V>(block, q, t.ldq, sum);
      } else {
        AddPart<F, R, V>(source, block, q, t.ldq, centre + part * 16, part, sum);
      }
      __m256 scale[V];
      source.Scale(b, part, scale);
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) {
        const __m256 s = _mm256_set1_ps(a[r * t.ld_blocks].scale);
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) {
          __m256i n = sum[r][v];
          if constexpr (F::kZero != 0 && !kCentred<F> && (F::kBits != 8 || Source::kUnpacked)) {
            n = _mm256_add_epi32(n, Offset<F>(a[r * t.ld_blocks], part));
          }
          if constexpr (F::kZero == 0 && F::kBits == 8 &&
                        !Source::kUnpacked) {  // the products are of u - 128
            const __m256i offset = _mm256_set1_epi32(a[r * t.ld_blocks].offset);
            n = _mm256_sub_epi32(n, _mm256_slli_epi32(offset, 4));
          }
          acc[r][v] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(n), _mm256_mul_ps(scale[v], s), acc[r][v]);
        }
      }
    }
    if constexpr (F::kMin) {
      __m256 min[V];
      source.Min(b, min);
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) {
        const __m256 s = _mm256_set1_ps(a[r * t.ld_blocks].scaled_sum);
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) acc[r][v] = _mm256_fmadd_ps(min[v], s, acc[r][v]);
      }
    }
  }
  StoreSums<R, V>(t.y, t.ldy, t.columns, acc);
}

// Weights are unpacked in registers, tile by tile, for few rows: in tiles of 32 columns (one pass
// over memory, few rows) or of 16 (as many rows as fit). Beyond, a pass that unpacks them pays.
// Measured on Zen 4; 8-bit weights need the least unpacking.
constexpr int kWideTileRows = 4;
template <typename F>
constexpr int kWideRowsMax = F::kBits == 8   ? 4
                             : F::kBits == 6 ? 16
                                             : 8;
template <typename F>
constexpr int kDirectRowsMax = F::kBits == 8 ? 20 : 0;

// Rows of a tile. More than these and g++ 12 spills the sums of pairs.
constexpr int kRowsMax = 4;

template <typename F, int R, typename Source>
void RunRows(Source source, int64_t count, Tile t, int rows, bool continues) {
  constexpr int kTileRows = Source::kVectors == 4 ? kWideTileRows : kRowsMax;
  while (rows > 0) {
    const int r = TileRows(rows, kTileRows);
    if (r == R) {
      RunTile<F, R>(source, count, t, continues);
      source.StopFetching();
      t.q += r * t.ldq;
      t.blocks += r * t.ld_blocks;
      t.y += r * t.ldy;
      rows -= r;
    } else {
      if constexpr (R > 1) return RunRows<F, R - 1>(source, count, t, rows, continues);
    }
  }
}

template <typename F>
void QuantizedPanel(const PanelCall& c) {
  const int64_t count = c.k / kBlockK;
  Tile t = {c.q, c.k, c.blocks, count, c.y, c.ldy, c.columns};
  if (c.rows <= kWideRowsMax<F>) {
    return RunRows<F, kWideTileRows>(PackedSource<F, 0, 4>{c.panel}, count, t, c.rows, false);
  }
  if constexpr (kDirectRowsMax<F> > 0) {
    if (c.rows <= kDirectRowsMax<F>) {
      RunRows<F, kRowsMax>(PackedSource<F, 0, 2>{c.panel}, count, t, c.rows, false);
      if (c.columns <= 16) return;
      t.y += 16;
      t.columns -= 16;
      return RunRows<F, kRowsMax>(PackedSource<F, 2, 2>{c.panel}, count, t, c.rows, false);
    }
  }
  Unpacked<F> u;
  for (int64_t b = 0; b < count; b += kBlocksUnpacked) {
    const int n = static_cast<int>(count - b < kBlocksUnpacked ? count - b : kBlocksUnpacked);
    Unpack<F>(c.panel, b, n, &u);
    t.q = c.q + b * kBlockK;
    t.blocks = c.blocks + b;
    for (int column = 0; column < c.columns; column += kPassColumns) {
      t.y = c.y + column;
      t.columns = c.columns - column;
      UnpackedSource<F> source = {
          u.tile + column / kPassColumns * (kBlocksUnpacked * kPassBytes<F>), u.scale + column,
          u.other + column, nullptr};
      if (column == 0) source.ahead = c.panel + (b + n) / F::kGroup * F::kGroupBytes;
      RunRows<F, kRowsMax>(source, n, t, c.rows, b > 0);
    }
  }
}

}  // namespace
}  // namespace cairn
