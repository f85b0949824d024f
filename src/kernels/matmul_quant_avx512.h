// Internal to matmul_avx512.cc and matmul_affine_avx512.cc, compiled with AVX-512 VNNI: quantised
// panels. Intrinsics, plain structs and an anonymous namespace only.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/matmul_avx512_tile.h"
#include "kernels/matmul_layout.h"
#include "kernels/matmul_panel.h"

namespace cairn {
namespace {

// Blocks unpacked at a time, reused over all rows: 32 KiB of bytes, or half of it for few rows,
// which leaves room in the L1 cache for the weights that are fetched meanwhile.
constexpr int kBlocksUnpacked = 32;
constexpr int kBlocksUnpackedFewRows = 16;
constexpr int kFewRows = 128;
constexpr int kRowsMax = 6;         // 6 rows x 2 vectors: 12 int32 + 12 float sums of 32 registers
constexpr int kDirectRowsMax = 12;  // up to here unpacking in registers beats a pass over memory

struct Pair {
  __m512i lo, hi;  // columns 0..15 and 16..31
};
INLINE PairF BytesToFloats(__m256i v) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm256_castsi256_si128(v))),
          _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm256_extracti128_si256(v, 1)))};
}
INLINE PairF Mul(PairF a, PairF b) {
  return {_mm512_mul_ps(a.lo, b.lo), _mm512_mul_ps(a.hi, b.hi)};
}
INLINE PairF Negate(PairF a) {
  const __m512 sign = _mm512_set1_ps(-0.0f);
  return {_mm512_xor_ps(a.lo, sign), _mm512_xor_ps(a.hi, sign)};
}

// Integers of quad Q of a packed block.
template <typename F, int Q>
INLINE Pair LoadQuad(const uint8_t* quants) {
  if constexpr (F::kBits == 8) {
    return {_mm512_load_si512(quants + Q * 128), _mm512_load_si512(quants + Q * 128 + 64)};
  }
  const __m512i mask = _mm512_set1_epi8(15);
  const __m512i v = _mm512_load_si512(quants + Q * 64);
  Pair w = {_mm512_and_si512(v, mask), _mm512_and_si512(_mm512_srli_epi16(v, 4), mask)};
  if constexpr (F::kBits == 5 || F::kBits == 6) {
    constexpr int kBit = F::kBits == 5 ? Q : Q % 4 * 2;
    const uint8_t* plane = quants + kPlaneOffset + (F::kBits == 5 ? 0 : Q / 4 * 128);
    const __m512i keep = _mm512_set1_epi8(F::kBits == 5 ? 0x10 : 0x30);
    __m512i p0 = _mm512_load_si512(plane);
    __m512i p1 = _mm512_load_si512(plane + 64);
    if constexpr (kBit < 4) {
      p0 = _mm512_slli_epi16(p0, 4 - kBit);
      p1 = _mm512_slli_epi16(p1, 4 - kBit);
    } else if constexpr (kBit > 4) {
      p0 = _mm512_srli_epi16(p0, kBit - 4);
      p1 = _mm512_srli_epi16(p1, kBit - 4);
    }
    constexpr int kOrAnd = 0xf8;  // a | (b & c)
    w.lo = _mm512_ternarylogic_epi32(w.lo, p0, keep, kOrAnd);
    w.hi = _mm512_ternarylogic_epi32(w.hi, p1, keep, kOrAnd);
  }
  return w;
}

INLINE __m512 BFloatsToFloats(const uint8_t* p) {
  const __m256i bits = _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

// Scales or offsets of an affine group.
template <typename F>
INLINE PairF LoadAffine(const uint8_t* p) {
  if constexpr (F::kNumber == AffineNumber::kF16) {
    return LoadHalves(p);
  } else if constexpr (F::kNumber == AffineNumber::kBF16) {
    return {BFloatsToFloats(p), BFloatsToFloats(p + 32)};
  } else {
    return {_mm512_load_ps(p), _mm512_load_ps(p + 64)};
  }
}

// Scale of block b (of its lower or upper half).
template <typename F>
INLINE PairF LoadScale(const uint8_t* panel, int64_t b, int half) {
  const uint8_t* header = GroupHeader<F>(panel, b);
  if constexpr (F::kScales == Scales::kAffine) return LoadAffine<F>(header);
  const PairF d = LoadHalves(header);
  const int i = static_cast<int>(b % F::kGroup);
  if constexpr (F::kScales == Scales::kSixBit) {
    const __m256i low =
        _mm256_load_si256(reinterpret_cast<const __m256i*>(header + kHeaderLow + i * 32));
    const __m256i high =
        _mm256_load_si256(reinterpret_cast<const __m256i*>(header + kHeaderHigh + i / 2 * 32));
    const __m256i two =
        _mm256_and_si256(_mm256_slli_epi16(_mm256_srl_epi16(high, _mm_cvtsi32_si128(i % 2 * 4)), 4),
                         _mm256_set1_epi8(0x30));
    return Mul(d, BytesToFloats(_mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi8(15)), two)));
  } else if constexpr (F::kScales == Scales::kHalves) {
    const uint8_t* s = header + kHeaderScales + (2 * i + half) * 32;
    const PairF scale = {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(
                             _mm_load_si128(reinterpret_cast<const __m128i*>(s)))),
                         _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(
                             _mm_load_si128(reinterpret_cast<const __m128i*>(s + 16))))};
    return Mul(d, scale);
  } else {
    return d;
  }
}

// Minimum of block b, its sign folded in.
template <typename F>
INLINE PairF LoadMin(const uint8_t* panel, int64_t b) {
  const uint8_t* header = GroupHeader<F>(panel, b);
  if constexpr (F::kScales == Scales::kAffine) return LoadAffine<F>(header + F::kBiasOffset);
  const PairF m = LoadHalves(header + kHeaderMin);
  if constexpr (F::kScales == Scales::kSixBit) {
    const int i = static_cast<int>(b % F::kGroup);
    const __m256i low =
        _mm256_load_si256(reinterpret_cast<const __m256i*>(header + kHeaderLow + i * 32));
    const __m256i high =
        _mm256_load_si256(reinterpret_cast<const __m256i*>(header + kHeaderHigh + i / 2 * 32));
    const __m256i two =
        _mm256_and_si256(_mm256_slli_epi16(_mm256_srl_epi16(high, _mm_cvtsi32_si128(i % 2 * 4)), 2),
                         _mm256_set1_epi8(0x30));
    const __m256i four = _mm256_and_si256(_mm256_srli_epi16(low, 4), _mm256_set1_epi8(15));
    return Negate(Mul(m, BytesToFloats(_mm256_or_si256(four, two))));
  } else {
    return m;
  }
}

template <typename F>
INLINE void PrefetchBlock(const uint8_t* panel, int64_t b) {
  constexpr int kBytes = F::kGroupBytes / F::kGroup;  // a block and its share of the header
#pragma GCC unroll 18
  for (int i = 0; i < kBytes; i += 64) _mm_prefetch(panel + b * kBytes + i, _MM_HINT_T0);
}

// Blocks of a panel as they lie packed; unpacked in registers on every use.
template <typename F>
struct PackedSource {
  const uint8_t* panel;
  template <int Q>
  INLINE Pair Quad(const uint8_t* block) const {
    return LoadQuad<F, Q>(block);
  }
  INLINE const uint8_t* Block(int64_t b) const {
    if constexpr (F::kGroup > 1) {
      // Headers and quants are two streams, which confuses the hardware's prefetcher (a third of
      // the bandwidth is left). Touching the lines in the order they lie, neither ahead nor behind,
      // keeps it going; farther ahead is slower.
      PrefetchBlock<F>(panel, b);
    }
    return BlockQuants<F>(panel, b);
  }
  INLINE PairF Scale(int64_t b, int half) const { return LoadScale<F>(panel, b, half); }
  INLINE PairF Min(int64_t b) const { return LoadMin<F>(panel, b); }
  INLINE void StopFetching() {}
};

// A few blocks unpacked into bytes and float scales.
struct Unpacked {
  alignas(64) uint8_t tile[kBlocksUnpacked * kTileBytes];
  alignas(64) float scale[kBlocksUnpacked * kPanelColumns];
  alignas(64) float other[kBlocksUnpacked * kPanelColumns];  // minimum, or scale of the upper half
};
template <typename F>
struct UnpackedSource {
  const uint8_t* tile;  // 8-bit integers are used where they lie: the panel's group
  const float* scale;
  const float* other;
  // The packed blocks after these, fetched while the first tile runs, so that memory and
  // arithmetic overlap; null for the other tiles. Past the last panel it fetches in vain.
  const uint8_t* ahead;

  template <int Q>
  INLINE Pair Quad(const uint8_t* block) const {
    return {_mm512_load_si512(block + Q * 128), _mm512_load_si512(block + Q * 128 + 64)};
  }
  INLINE const uint8_t* Block(int64_t b) const {
    if (ahead != nullptr) PrefetchBlock<F>(ahead, b);
    if constexpr (F::kBits == 8) return BlockQuants<F>(tile, b);
    return tile + b * kTileBytes;
  }
  INLINE PairF Scale(int64_t b, int half) const {
    return Load((half == 0 ? scale : other) + b * 32);
  }
  INLINE PairF Min(int64_t b) const { return Load(other + b * 32); }
  INLINE void StopFetching() { ahead = nullptr; }
  INLINE static PairF Load(const float* p) { return {_mm512_load_ps(p), _mm512_load_ps(p + 16)}; }
};

template <typename F>
INLINE void UnpackQuants(const uint8_t* quants, uint8_t* tile) {
  auto store = [&]<int Q>() __attribute__((always_inline)) {
    const Pair w = LoadQuad<F, Q>(quants);
    _mm512_store_si512(tile + Q * 128, w.lo);
    _mm512_store_si512(tile + Q * 128 + 64, w.hi);
  };
  store.template operator()<0>();
  store.template operator()<1>();
  store.template operator()<2>();
  store.template operator()<3>();
  store.template operator()<4>();
  store.template operator()<5>();
  store.template operator()<6>();
  store.template operator()<7>();
}

template <typename F>
void Unpack(const uint8_t* panel, int64_t begin, int count, Unpacked* out) {
  for (int b = 0; b < count; ++b) {
    if constexpr (F::kBits != 8) {
      UnpackQuants<F>(BlockQuants<F>(panel, begin + b), out->tile + b * kTileBytes);
    }
    Store(out->scale + b * 32, LoadScale<F>(panel, begin + b, 0));
    if constexpr (F::kHalves) Store(out->other + b * 32, LoadScale<F>(panel, begin + b, 1));
    if constexpr (F::kMin) Store(out->other + b * 32, LoadMin<F>(panel, begin + b));
  }
}

// Rows and the place of their sums.
struct Tile {
  const int8_t* q;
  int64_t ldq;
  const ActivationBlock* blocks;
  int64_t ld_blocks;
  float* y;
  int64_t ldy;
  __mmask16 mask_lo, mask_hi;  // columns that exist
};

template <typename F>
INLINE __m512i StartSum(const ActivationBlock& a, int half) {
  if constexpr (F::kZero == 0) return _mm512_setzero_si512();
  __m512i v = _mm512_set1_epi32(half == 1 || !F::kHalves ? a.offset : a.low_offset);
  if (half == 1) v = _mm512_sub_epi32(v, _mm512_set1_epi32(a.low_offset));
  return _mm512_slli_epi32(v, F::kZeroShift);
}

// `count` blocks of R rows. The sums start at zero or, continue, from y.
template <typename F, int R, typename Source>
inline void RunTile(const Source& source, int64_t count, const Tile& t, bool continues) {
  constexpr int kParts = F::kHalves ? 2 : 1;
  PairF acc[R];
  for (int r = 0; r < R; ++r) {
    acc[r] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    if (continues) {
      acc[r].lo = _mm512_maskz_loadu_ps(t.mask_lo, t.y + r * t.ldy);
      acc[r].hi = _mm512_maskz_loadu_ps(t.mask_hi, t.y + r * t.ldy + 16);
    }
  }
  for (int64_t b = 0; b < count; ++b) {
    const uint8_t* block = source.Block(b);
    const int8_t* q = t.q + b * kBlockK;
    const ActivationBlock* a = t.blocks + b;
#pragma GCC unroll 2
    for (int part = 0; part < kParts; ++part) {
      Pair sum[R];
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) {
        sum[r].lo = StartSum<F>(a[r * t.ld_blocks], part);
        sum[r].hi = sum[r].lo;
      }
      auto add = [&]<int Q>() __attribute__((always_inline)) {
        const Pair w = source.template Quad<Q>(block);
#pragma GCC unroll 6
        for (int r = 0; r < R; ++r) {
          int word;
          __builtin_memcpy(&word, q + r * t.ldq + Q * 4, sizeof word);
          const __m512i x = _mm512_set1_epi32(word);
          sum[r].lo = _mm512_dpbusd_epi32(sum[r].lo, w.lo, x);
          sum[r].hi = _mm512_dpbusd_epi32(sum[r].hi, w.hi, x);
        }
      };
      if (part == 0) {
        add.template operator()<0>();
        add.template operator()<1>();
        add.template operator()<2>();
        add.template operator()<3>();
      }
      if (part == kParts - 1) {
        add.template operator()<4>();
        add.template operator()<5>();
        add.template operator()<6>();
        add.template operator()<7>();
      }
      const PairF scale = source.Scale(b, part);
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) {
        const __m512 s = _mm512_set1_ps(a[r * t.ld_blocks].scale);
        acc[r].lo =
            _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[r].lo), _mm512_mul_ps(scale.lo, s), acc[r].lo);
        acc[r].hi =
            _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[r].hi), _mm512_mul_ps(scale.hi, s), acc[r].hi);
      }
    }
    if constexpr (F::kMin) {
      const PairF min = source.Min(b);
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) {
        const __m512 s = _mm512_set1_ps(a[r * t.ld_blocks].scaled_sum);
        acc[r].lo = _mm512_fmadd_ps(min.lo, s, acc[r].lo);
        acc[r].hi = _mm512_fmadd_ps(min.hi, s, acc[r].hi);
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    _mm512_mask_storeu_ps(t.y + r * t.ldy, t.mask_lo, acc[r].lo);
    _mm512_mask_storeu_ps(t.y + r * t.ldy + 16, t.mask_hi, acc[r].hi);
  }
}

template <typename F, typename Source>
void RunRows(Source source, int64_t count, Tile t, int rows, bool continues) {
  while (rows > 0) {
    const int r = TileRows(rows);
    switch (r) {
      case 1:
        RunTile<F, 1>(source, count, t, continues);
        break;
      case 2:
        RunTile<F, 2>(source, count, t, continues);
        break;
      case 3:
        RunTile<F, 3>(source, count, t, continues);
        break;
      case 4:
        RunTile<F, 4>(source, count, t, continues);
        break;
      case 5:
        RunTile<F, 5>(source, count, t, continues);
        break;
      default:
        RunTile<F, 6>(source, count, t, continues);
    }
    source.StopFetching();
    t.q += r * t.ldq;
    t.blocks += r * t.ld_blocks;
    t.y += r * t.ldy;
    rows -= r;
  }
}

template <typename F>
void QuantizedPanel(const PanelCall& c) {
  const int64_t count = c.k / kBlockK;
  Tile t = {c.q, c.k, c.blocks, count, c.y, c.ldy, 0, 0};
  SetMasks(c.columns, &t.mask_lo, &t.mask_hi);
  if (c.rows <= kDirectRowsMax) {
    return RunRows<F>(PackedSource<F>{c.panel}, count, t, c.rows, false);
  }
  Unpacked u;
  const int step = c.rows > kFewRows ? kBlocksUnpacked : kBlocksUnpackedFewRows;
  for (int64_t b = 0; b < count; b += step) {
    const int n = static_cast<int>(count - b < step ? count - b : step);
    Unpack<F>(c.panel, b, n, &u);
    t.q = c.q + b * kBlockK;
    t.blocks = c.blocks + b;
    const uint8_t* tile = F::kBits == 8 ? GroupHeader<F>(c.panel, b) : u.tile;
    UnpackedSource<F> source = {tile, u.scale, u.other, nullptr};
    source.ahead = c.panel + (b + n) / F::kGroup * F::kGroupBytes;
    RunRows<F>(source, n, t, c.rows, b > 0);
  }
}

}  // namespace
}  // namespace cairn
