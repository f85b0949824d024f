// Attention with AVX2, FMA and F16C.
#include "kernels/attention_impl.h"

namespace cairn {

extern const AttentionKernels kAttentionAvx2;
const AttentionKernels kAttentionAvx2 = {.attend_tile = AttendTile,
                                         .attend_segments = AttendSegments,
                                         .merge_parts = MergeParts,
                                         .finish_row = FinishRow,
                                         .store = StoreKvRows};

}  // namespace cairn
