// Compiled with AVX2, FMA and F16C: intrinsics, plain structs and anonymous namespaces only.
#include "kernels/matmul_quant_avx2.h"

namespace cairn {

void MatMulPanelAvx2(const PanelCall& call) {
  WithFormat(call.type, [&]<typename F>() { QuantizedPanel<F>(call); });
}

}  // namespace cairn
