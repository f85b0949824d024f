// The version of the arithmetic: part of every ModelFingerprint, so that a checkpoint written by a
// build whose logits may differ in any bit is never restored by this one.
#pragma once

#include <cstdint>

namespace cairn {

// Raise it with every change that can move a bit of a state or of a logit: an order of
// accumulation, a polynomial, a rounding, the layout of a state buffer or of a KV block.
inline constexpr uint32_t kNumericsVersion = 1;

}  // namespace cairn
