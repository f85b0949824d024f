// Internal to the files of the scalar level and of packing: every quantised layout, and the numbers
// of the affine ones.
#pragma once

#include <cstdint>

#include "kernels/matmul_affine_layout.h"
#include "kernels/quant.h"

namespace cairn {
namespace {

// Calls fn.template operator()<F>() with the layout of a quantised type.
template <typename Fn>
inline void WithAnyFormat(WeightType type, Fn&& fn) {
  if (AffineFormatOf(type)) {
    WithAffineFormat(type, fn);
  } else {
    WithFormat(type, fn);
  }
}

// Number `c` of an affine header's scales or offsets.
template <typename F>
inline float AffineValue(const uint8_t* p, int c) {
  constexpr AffineScale kScale = F::kNumber == AffineNumber::kF16    ? AffineScale::kF16
                                 : F::kNumber == AffineNumber::kBF16 ? AffineScale::kBF16
                                                                     : AffineScale::kF32;
  return AffineNumberAt({F::kBits, F::kGroup * kBlockK, kScale}, p + F::kNumberBytes * c);
}

}  // namespace
}  // namespace cairn
