// Attention without vector instructions: the definition the vector levels equal in bits.
#include "kernels/attention_impl.h"

namespace cairn {

extern const AttentionKernels kAttentionScalar;
const AttentionKernels kAttentionScalar = {.attend_tile = AttendTile,
                                           .attend_segments = AttendSegments,
                                           .merge_parts = MergeParts,
                                           .finish_row = FinishRow,
                                           .store = StoreKvRows};

}  // namespace cairn
