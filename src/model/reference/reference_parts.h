// Weights and recurrences that several reference models have.
//
// Threads: pure functions.
#pragma once

#include <optional>
#include <string>

#include "model/config.h"
#include "model/reference/moe_reference.h"
#include "model/reference/reference_math.h"
#include "model/state_tensor.h"

namespace cairn::reference {

struct Qkv {
  Matrix q, k, v;
};
// PREFIX attn_q, attn_k and attn_v, or the three as attn_qkv.
Result<Qkv> LoadQkv(const ModelFile& file, const std::string& prefix, int64_t q, int64_t k,
                    int64_t v, int64_t hidden);

struct AttentionWeights : Qkv {
  Matrix out;
  Row q_norm, k_norm;  // [head_dim] or empty
};
// PREFIX attn_q (`query_parts` times as wide), attn_k, attn_v, attn_output; the norms if the file
// has them.
Result<AttentionWeights> LoadAttention(const ModelFile& file, const std::string& prefix,
                                       const DecoderConfig& config, int query_parts = 1);

// SwiGLU, or a mixture of experts in its place.
struct Ffn {
  SwiGlu dense;
  std::optional<Moe> moe;
  Rows operator()(const Rows& x) const { return moe.has_value() ? (*moe)(x) : dense(x); }
};
Result<Ffn> LoadFfn(const ModelFile& file, const std::string& prefix, int64_t hidden, int64_t ffn,
                    const std::optional<MoeConfig>& moe);

// y[t][c] = bias[c] + sum_j taps[c, j] x[t - K + 1 + j][c], zeros before the start; no bias: empty.
Rows CausalConv(const Row& taps, int64_t kernel, const Row& bias, const Rows& x);
// The last `count` rows of the parts side by side, zeros before the start: TAGconv.
StateTensor ConvState(const std::string& tag, int64_t count, std::span<const Rows* const> parts);

// One head's o, whose memory S [dv, dk] moves on by a token; q and k are made unit vectors, decay
// [dk]. o = S q / sqrt(dk) after S <- S decay + beta (v - S k) k^T.
void DeltaStep(const double* q, const double* k, const double* v, const Row& decay, double beta,
               int dv, Row& memory, double* o);

// The checkpoint keeps the pairs of the rotation half a head apart; some files side by side.
Rows HalfSplit(const Rows& x, int64_t d);

}  // namespace cairn::reference
