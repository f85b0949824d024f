// Attention with AVX-512.
#include "kernels/attention_impl.h"

namespace cairn {

extern const AttentionKernels kAttentionAvx512;
const AttentionKernels kAttentionAvx512 = {.attend_tile = AttendTile,
                                           .attend_segments = AttendSegments,
                                           .merge_parts = MergeParts,
                                           .finish_row = FinishRow,
                                           .store = StoreKvRows};

}  // namespace cairn
