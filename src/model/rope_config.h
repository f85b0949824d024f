// Rotary positions as a model file describes them: frequencies, and how they are stretched beyond
// the trained context. Everything is fixed at load.
//
// Sources: linear, arXiv 2306.15595; YaRN, arXiv 2309.00071; LongRoPE, arXiv 2402.13753; llama3 as
// in the Llama 3.1 checkpoints (GGUF holds its divisors as a tensor).
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "kernels/rope.h"
#include "model/model_file.h"
#include "model/weights.h"

namespace cairn {

enum class RopeScalingKind { kNone, kLinear, kYarn, kLongRope };

struct RopeConfig {
  double base = 10000;
  int dims = 0;  // that rotate; even
  RopeScalingKind scaling = RopeScalingKind::kNone;
  double factor = 1;             // linear and YaRN: positions stretch by it
  double attention_factor = 1;   // on cos and sin, besides what YaRN says
  double beta_fast = 32;         // YaRN: rotations over the trained context ...
  double beta_slow = 1;          // ... between which the two kinds of frequencies blend
  int64_t original_context = 0;  // YaRN and LongRoPE: trained before stretching
};

// ARCH.rope.freq_base, .dimension_count (default `head_dim`), .scaling.*. Errors: DataLoss,
// Unsupported for another kind of scaling.
Result<RopeConfig> ReadRopeConfig(const ModelFile& file, std::string_view architecture,
                                  int head_dim, int64_t trained_context);

// Frequencies without the file's tensors. Exact in the sense of kernels/rope.h: no libm.
RopeTable MakeRopeTable(const RopeConfig& config, RopePairs pairs);

// The same with rope_freqs.weight (llama3), or rope_factors_long/short.weight (LongRoPE: long if
// `context` in force is longer than the original one) divided in.
Result<RopeTable> LoadRopeTable(Weights& weights, const RopeConfig& config, RopePairs pairs,
                                int64_t context);

}  // namespace cairn
