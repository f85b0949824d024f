// Internal: the layout of a panel, 32 output columns of W over all of k, the same for every level.
// Everything here lies in an anonymous namespace, because files compiled for one instruction set
// include it.
//
// Float types: [k][32] values as in the file (F32, or 16 bits).
//
// Quantised types: groups of 1 (or, K types, 8) blocks of 32 k; a group is a header, then its
// blocks.
//   A block holds integers u of 4, 5, 6 or 8 bits. A *quad* is 4 consecutive k of all 32 columns:
//   128 integers, byte position i = column * 4 + k % 4, so that 4 activations broadcast as one
//   32-bit word meet 8 or 16 columns in a vector. Low 4 bits: [8 quads][64], byte i holds position
//   i (low nibble) and 64 + i (high nibble). 5th bit: [128], bit q of byte i belongs to position i
//   of quad q. Bits 4..5 of 6: [2][128], bits 2 (q % 4) of byte i in half q / 4. 8 bits: [8][128].
//   Headers: plain types: d [32] f16, then m [32] f16 if there is a minimum. Q4_K, Q5_K: d [32],
//   dmin [32] f16, low [8][32], high [4][32]: 6-bit scale and minimum of block i are
//   low[i] & 15 | (high[i / 2] >> 4 (i % 2) & 3) << 4 and low[i] >> 4 | (high[i / 2] >> (4 (i % 2)
//   + 2) & 3) << 4. Q6_K: d [32] f16, scales [16][32] int8.
//   So a panel takes exactly the file's bytes of its 32 rows, and every part is 64-byte aligned.
#pragma once

#include <cstdint>

#include "kernels/weight_type.h"

namespace cairn {
namespace {

constexpr int kPanelColumns = 32;
constexpr int kBlockK = 32;
constexpr int kQuads = 8;         // per block
constexpr int kTileBytes = 1024;  // a block unpacked to bytes: [8 quads][128]
constexpr int kQuadBytes = 128;

// The numbers of an affine group's header.
enum class AffineNumber { kF16, kBF16, kF32 };

enum class Scales {
  kPlain,   // one f16 scale per block
  kSixBit,  // f16 times a 6-bit integer, f16 minimum times a 6-bit integer
  kHalves,  // f16 times an int8 per 16
  kAffine,  // scale and offset per group of blocks, see matmul_affine_layout.h
};

template <int bits, int zero, bool min, Scales scales>
struct Format {
  static constexpr int kBits = bits;
  static constexpr int kZero = zero;
  // ActivationBlock offsets are -8 * sum; shifted left by this they are -zero * sum.
  static constexpr int kZeroShift = zero == 0    ? 0
                                    : zero == 8  ? 0
                                    : zero == 16 ? 1
                                    : zero == 32 ? 2
                                                 : 4;
  static constexpr bool kMin = min;
  static constexpr Scales kScales = scales;
  static constexpr bool kHalves = scales == Scales::kHalves;
  static constexpr int kGroup = scales == Scales::kPlain ? 1 : 8;  // blocks
  static constexpr int kHeaderBytes = scales == Scales::kPlain    ? (min ? 128 : 64)
                                      : scales == Scales::kSixBit ? 512
                                                                  : 576;
  static constexpr int kBlockBytes = bits * 128;
  static constexpr int kGroupBytes = kHeaderBytes + kGroup * kBlockBytes;
};

using Q8_0 = Format<8, 128, false, Scales::kPlain>;
using Q4_0 = Format<4, 8, false, Scales::kPlain>;
using Q4_1 = Format<4, 0, true, Scales::kPlain>;
using Q5_0 = Format<5, 16, false, Scales::kPlain>;
using Q5_1 = Format<5, 0, true, Scales::kPlain>;
using Q4_K = Format<4, 0, true, Scales::kSixBit>;
using Q5_K = Format<5, 0, true, Scales::kSixBit>;
using Q6_K = Format<6, 32, false, Scales::kHalves>;

constexpr int kHeaderMin = 64;     // offset of m or dmin
constexpr int kHeaderLow = 128;    // Q4_K, Q5_K
constexpr int kHeaderHigh = 384;   // Q4_K, Q5_K
constexpr int kHeaderScales = 64;  // Q6_K
constexpr int kPlaneOffset = 512;  // of the bits above the low 4, in a block

// Calls fn.template operator()<F>() with the format of a quantised type.
template <typename Fn>
inline void WithFormat(WeightType type, Fn&& fn) {
  switch (type) {
    case WeightType::kQ8_0:
      return fn.template operator()<Q8_0>();
    case WeightType::kQ4_0:
      return fn.template operator()<Q4_0>();
    case WeightType::kQ4_1:
      return fn.template operator()<Q4_1>();
    case WeightType::kQ5_0:
      return fn.template operator()<Q5_0>();
    case WeightType::kQ5_1:
      return fn.template operator()<Q5_1>();
    case WeightType::kQ4_K:
      return fn.template operator()<Q4_K>();
    case WeightType::kQ5_K:
      return fn.template operator()<Q5_K>();
    case WeightType::kQ6_K:
      return fn.template operator()<Q6_K>();
    default:
      return;
  }
}

// Header and quants of block `b` of a panel.
template <typename F>
inline const uint8_t* GroupHeader(const uint8_t* panel, int64_t b) {
  return panel + b / F::kGroup * F::kGroupBytes;
}
template <typename F>
inline const uint8_t* BlockQuants(const uint8_t* panel, int64_t b) {
  return GroupHeader<F>(panel, b) + F::kHeaderBytes + b % F::kGroup * F::kBlockBytes;
}

// The integer at byte position i of quad q.
template <typename F>
inline int BlockValue(const uint8_t* quants, int q, int i) {
  if constexpr (F::kBits == 8) return quants[q * kQuadBytes + i];
  int u = quants[q * 64 + i % 64] >> (i / 64 * 4) & 15;
  if constexpr (F::kBits == 5) u |= (quants[kPlaneOffset + i] >> q & 1) << 4;
  if constexpr (F::kBits == 6) {
    u |= (quants[kPlaneOffset + q / 4 * kQuadBytes + i] >> (q % 4 * 2) & 3) << 4;
  }
  return u;
}

inline int SixBitScale(const uint8_t* header, int block, int column) {
  const int high = header[kHeaderHigh + block / 2 * 32 + column] >> (block % 2 * 4);
  return (header[kHeaderLow + block * 32 + column] & 15) | (high & 3) << 4;
}
inline int SixBitMin(const uint8_t* header, int block, int column) {
  const int high = header[kHeaderHigh + block / 2 * 32 + column] >> (block % 2 * 4);
  return header[kHeaderLow + block * 32 + column] >> 4 | (high >> 2 & 3) << 4;
}

}  // namespace
}  // namespace cairn
