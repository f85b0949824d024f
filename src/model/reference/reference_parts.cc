#include "model/reference/reference_parts.h"

#include <cmath>
#include <utility>

namespace cairn::reference {
namespace {

// x / sqrt(sum x^2 + 1e-6), n elements.
Row Unit(const double* x, int n) {
  Row y(x, x + n);
  double squares = 1e-6;
  for (const double value : y) squares += value * value;
  for (double& value : y) value /= std::sqrt(squares);
  return y;
}

// Rows [begin, begin + count).
Matrix RowsOf(const Matrix& all, int64_t begin, int64_t count) {
  Matrix part{.n = count, .k = all.k, .w = {}, .bias = {}};
  part.w.assign(all.w.begin() + begin * all.k, all.w.begin() + (begin + count) * all.k);
  if (!all.bias.empty())
    part.bias.assign(all.bias.begin() + begin, all.bias.begin() + begin + count);
  return part;
}

}  // namespace

Result<Qkv> LoadQkv(const ModelFile& file, const std::string& prefix, int64_t q, int64_t k,
                    int64_t v, int64_t hidden) {
  Qkv net;
  if (file.HasTensor(prefix + "attn_qkv.weight")) {
    ASSIGN_OR_RETURN(const Matrix all, LoadMatrix(file, prefix + "attn_qkv", q + k + v, hidden));
    return Qkv{RowsOf(all, 0, q), RowsOf(all, q, k), RowsOf(all, q + k, v)};
  }
  ASSIGN_OR_RETURN(net.q, LoadMatrix(file, prefix + "attn_q", q, hidden));
  ASSIGN_OR_RETURN(net.k, LoadMatrix(file, prefix + "attn_k", k, hidden));
  ASSIGN_OR_RETURN(net.v, LoadMatrix(file, prefix + "attn_v", v, hidden));
  return net;
}

Result<AttentionWeights> LoadAttention(const ModelFile& file, const std::string& prefix,
                                       const DecoderConfig& config, int query_parts) {
  const int64_t hidden = config.hidden_size, d = config.head_dim;
  const int64_t q_width = config.heads * d, kv_width = config.kv_heads * d;
  AttentionWeights net;
  ASSIGN_OR_RETURN(static_cast<Qkv&>(net),
                   LoadQkv(file, prefix, query_parts * q_width, kv_width, kv_width, hidden));
  ASSIGN_OR_RETURN(net.out, LoadMatrix(file, prefix + "attn_output", hidden, q_width));
  if (file.HasTensor(prefix + "attn_q_norm.weight")) {
    ASSIGN_OR_RETURN(net.q_norm, LoadVector(file, prefix + "attn_q_norm.weight", d));
    ASSIGN_OR_RETURN(net.k_norm, LoadVector(file, prefix + "attn_k_norm.weight", d));
  }
  return net;
}

Result<Ffn> LoadFfn(const ModelFile& file, const std::string& prefix, int64_t hidden, int64_t ffn,
                    const std::optional<MoeConfig>& moe) {
  Ffn net;
  if (moe.has_value()) {
    ASSIGN_OR_RETURN(net.moe, LoadMoe(file, prefix, hidden, *moe));
  } else {
    ASSIGN_OR_RETURN(net.dense, LoadSwiGlu(file, prefix, hidden, ffn));
  }
  return net;
}

Rows CausalConv(const Row& taps, int64_t kernel, const Row& bias, const Rows& x) {
  Rows y = x;
  for (int64_t t = 0; t < static_cast<int64_t>(x.size()); ++t) {
    for (size_t c = 0; c < x[t].size(); ++c) {
      double sum = bias.empty() ? 0.0 : bias[c];
      for (int64_t j = 0; j < kernel; ++j) {
        const int64_t source = t - kernel + 1 + j;
        if (source >= 0) sum += taps[c * kernel + j] * x[source][c];
      }
      y[t][c] = sum;
    }
  }
  return y;
}

StateTensor ConvState(const std::string& tag, int64_t count, std::span<const Rows* const> parts) {
  const int64_t tokens = parts.front()->size();
  StateTensor state{tag + "conv", {count, 0}, {}};
  for (const Rows* part : parts) state.shape[1] += part->front().size();
  for (int64_t t = tokens - count; t < tokens; ++t) {
    for (const Rows* part : parts) {
      const Row row = t < 0 ? Row(part->front().size(), 0.0) : (*part)[t];
      for (const double value : row) state.data.push_back(static_cast<float>(value));
    }
  }
  return state;
}

void DeltaStep(const double* q, const double* k, const double* v, const Row& decay, double beta,
               int dv, Row& memory, double* o) {
  const int dk = static_cast<int>(decay.size());
  const Row q_unit = Unit(q, dk), k_unit = Unit(k, dk);
  for (int i = 0; i < dv; ++i) {
    double* s = &memory[int64_t{i} * dk];  // S[i, :]
    double read = 0, result = 0;
    for (int j = 0; j < dk; ++j) s[j] *= decay[j];
    for (int j = 0; j < dk; ++j) read += s[j] * k_unit[j];
    for (int j = 0; j < dk; ++j) s[j] += beta * (v[i] - read) * k_unit[j];
    for (int j = 0; j < dk; ++j) result += s[j] * q_unit[j];
    o[i] = result / std::sqrt(static_cast<double>(dk));
  }
}

Rows HalfSplit(const Rows& x, int64_t d) {
  Rows y = x;
  for (size_t t = 0; t < x.size(); ++t) {
    for (size_t head = 0; head < x[t].size(); head += d) {
      for (int64_t i = 0; i < d; ++i) y[t][head + i % 2 * (d / 2) + i / 2] = x[t][head + i];
    }
  }
  return y;
}

}  // namespace cairn::reference
