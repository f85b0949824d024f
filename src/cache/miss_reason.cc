#include "cache/miss_reason.h"

namespace cairn {

const char* MissReasonName(MissReason reason) {
  switch (reason) {
    case MissReason::kDisabledByRequest:
      return "disabled_by_request";
    case MissReason::kPromptLogprobs:
      return "prompt_logprobs";
    case MissReason::kEmptyCache:
      return "empty_cache";
    case MissReason::kNoSharedPrefix:
      return "no_shared_prefix";
    case MissReason::kEvicted:
      return "evicted";
    case MissReason::kTooShort:
      return "too_short";
    case MissReason::kNoCheckpointBeforeDivergence:
      return "no_checkpoint_before_divergence";
    case MissReason::kBetweenCheckpoints:
      return "between_checkpoints";
  }
  return "unknown";
}

}  // namespace cairn
