// Compiled with AVX2, FMA and F16C: intrinsics, plain structs and anonymous namespaces only.
#include "kernels/matmul_affine_layout.h"
#include "kernels/matmul_quant_avx2.h"

namespace cairn {

void MatMulAffinePanelAvx2(const PanelCall& call) {
  WithAffineFormat(call.type, [&]<typename F>() { QuantizedPanel<F>(call); });
}

}  // namespace cairn
