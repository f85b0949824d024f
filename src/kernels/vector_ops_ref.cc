#include "kernels/vector_ops.h"
#include "kernels/vector_ops_impl.h"

namespace cairn {

const VectorOpsLevel kVectorOpsRef = kVectorOps;

float ExpF(float x) { return Exp(FloatLanes<1>{{x}}).v[0]; }
float LogF(float x) { return Log(FloatLanes<1>{{x}}).v[0]; }
float SigmoidF(float x) { return Sigmoid(FloatLanes<1>{{x}}).v[0]; }
float SiluF(float x) { return Silu(FloatLanes<1>{{x}}).v[0]; }
float SoftplusF(float x) { return Softplus(FloatLanes<1>{{x}}).v[0]; }

}  // namespace cairn
