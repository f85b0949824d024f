// Why a request did not reuse more of its prompt. Threads: plain data.
#pragma once

namespace cairn {

// In the order in which they are tried; the first that applies is reported. The first two are the
// engine's to say, the rest PrefixTree::Find's.
enum class MissReason {
  kDisabledByRequest,
  kPromptLogprobs,
  kEmptyCache,
  kNoSharedPrefix,
  kEvicted,
  kTooShort,
  kNoCheckpointBeforeDivergence,
  kBetweenCheckpoints,
};
const char* MissReasonName(MissReason reason);  // "empty_cache", ... as clients see them

}  // namespace cairn
