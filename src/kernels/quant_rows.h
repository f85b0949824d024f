// Internal: int8 quantisation of `count` blocks of 32, one function per instruction set. The rule
// is QuantizeRow's (quant.h).
#pragma once

#include <cstdint>

#include "kernels/weight_type.h"

namespace cairn {

void QuantizeBlocksScalar(const float* x, int64_t count, int8_t* q, ActivationBlock* blocks);
void QuantizeBlocksAvx2(const float* x, int64_t count, int8_t* q, ActivationBlock* blocks);

}  // namespace cairn
