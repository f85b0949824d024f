// Compiled with AVX-512 VNNI: intrinsics, plain structs and anonymous namespaces only.
// g++ 12 takes the deliberately undefined operand inside its own intrinsics for a mistake of ours.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include "kernels/matmul_quant_avx512.h"

namespace cairn {

void MatMulPanelAvx512(const PanelCall& call) {
  WithFormat(call.type, [&]<typename F>() { QuantizedPanel<F>(call); });
}

}  // namespace cairn
