#include "model/reference/reference_math.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "kernels/quant.h"
#include "model/weights.h"

namespace cairn::reference {
namespace {

// All elements of a tensor as float32, file order.
Result<std::vector<float>> LoadFloats(const ModelFile& file, const std::string& name,
                                      int64_t elements) {
  ASSIGN_OR_RETURN(const TensorView tensor, file.OpenTensors()->Get(name));
  int64_t count = 1;
  for (const int64_t dim : tensor.shape) count *= dim;
  if (count != elements) {
    return DataLoss("[reference] " + name + " has " + std::to_string(count) + " elements, wanted " +
                    std::to_string(elements));
  }
  const int64_t width = tensor.shape.back();
  const size_t row_bytes = RowBytes(tensor.type, width);
  std::vector<float> out(elements);
  for (int64_t row = 0; row < elements / width; ++row) {
    DequantizeRow(tensor.type, tensor.bytes.subspan(row * row_bytes, row_bytes),
                  std::span(out).subspan(row * width, width));
  }
  return out;
}

}  // namespace

Row Matrix::operator()(const Row& x) const {
  Row y(n);
  for (int64_t i = 0; i < n; ++i) {
    double sum = bias.empty() ? 0.0 : bias[i];
    for (int64_t j = 0; j < k; ++j) sum += static_cast<double>(w[i * k + j]) * x[j];
    y[i] = sum;
  }
  return y;
}

Rows Matrix::operator()(const Rows& x) const {
  Rows y;
  for (const Row& row : x) y.push_back((*this)(row));
  return y;
}

Result<Matrix> LoadMatrix(const ModelFile& file, const std::string& name, int64_t n, int64_t k) {
  Matrix matrix;
  matrix.n = n;
  matrix.k = k;
  ASSIGN_OR_RETURN(matrix.w, LoadFloats(file, name + ".weight", n * k));
  if (file.HasTensor(name + ".bias")) {
    ASSIGN_OR_RETURN(matrix.bias, LoadVector(file, name + ".bias", n));
  }
  return matrix;
}

Result<Row> LoadVector(const ModelFile& file, const std::string& name, int64_t n) {
  ASSIGN_OR_RETURN(const std::vector<float> floats, LoadFloats(file, name, n));
  return Row(floats.begin(), floats.end());
}

double Sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
double Silu(double x) { return x * Sigmoid(x); }
Rows Silu(Rows x) {
  for (Row& row : x) {
    for (double& value : row) value = Silu(value);
  }
  return x;
}
double Softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }

double Gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

Row RmsNorm(const Row& x, const Row& w, double eps) {
  const size_t n = w.size();
  Row y(x.size());
  for (size_t begin = 0; begin < x.size(); begin += n) {
    double squares = 0;
    for (size_t i = 0; i < n; ++i) squares += x[begin + i] * x[begin + i];
    const double scale = 1.0 / std::sqrt(squares / n + eps);
    for (size_t i = 0; i < n; ++i) y[begin + i] = w[i] * x[begin + i] * scale;
  }
  return y;
}

Rows RmsNorm(const Rows& x, const Row& w, double eps) {
  Rows y;
  for (const Row& row : x) y.push_back(RmsNorm(row, w, eps));
  return y;
}

void Multiply(Rows& x, double factor) {
  for (Row& row : x) {
    for (double& value : row) value *= factor;
  }
}

void Add(Rows& x, const Rows& y) {
  for (size_t t = 0; t < x.size(); ++t) {
    for (size_t i = 0; i < x[t].size(); ++i) x[t][i] += y[t][i];
  }
}

void Rotate(Rows& x, const std::vector<double>& inv_freq, int64_t d, bool half_split,
            double magnitude) {
  const int64_t half = inv_freq.size();
  for (size_t t = 0; t < x.size(); ++t) {
    for (size_t head = 0; head < x[t].size(); head += d) {
      for (int64_t i = 0; i < half; ++i) {
        double& a = x[t][head + (half_split ? i : 2 * i)];
        double& b = x[t][head + (half_split ? i + half : 2 * i + 1)];
        const double angle = static_cast<double>(t) * inv_freq[i];
        const double cos = std::cos(angle) * magnitude, sin = std::sin(angle) * magnitude;
        const double rotated_a = a * cos - b * sin;
        b = b * cos + a * sin;
        a = rotated_a;
      }
    }
  }
}

Rows CausalAttention(const Rows& q, const Rows& k, const Rows& v, int heads, int kv_heads,
                     int64_t d, double scale, int64_t window) {
  if (scale == 0) scale = 1.0 / std::sqrt(static_cast<double>(d));
  Rows out(q.size(), Row(heads * d, 0.0));
  for (size_t t = 0; t < q.size(); ++t) {
    for (int h = 0; h < heads; ++h) {
      const int64_t q_at = h * d, kv_at = h / (heads / kv_heads) * d;
      const size_t first = static_cast<int64_t>(t) < window ? 0 : t + 1 - window;
      Row score(t + 1, -INFINITY);
      for (size_t s = first; s <= t; ++s) {
        score[s] = 0;
        for (int64_t i = 0; i < d; ++i) score[s] += q[t][q_at + i] * k[s][kv_at + i];
        score[s] *= scale;
      }
      const double max = *std::max_element(score.begin(), score.end());
      double sum = 0;
      for (double& s : score) sum += s = std::exp(s - max);
      for (size_t s = first; s <= t; ++s) {
        for (int64_t i = 0; i < d; ++i) out[t][q_at + i] += score[s] / sum * v[s][kv_at + i];
      }
    }
  }
  return out;
}

Rows SwiGlu::operator()(const Rows& x) const {
  Rows h = gate(x);
  const Rows u = up(x);
  for (size_t t = 0; t < h.size(); ++t) {
    for (size_t i = 0; i < h[t].size(); ++i) h[t][i] = activation(h[t][i]) * u[t][i];
  }
  return down(h);
}

Result<SwiGlu> LoadSwiGlu(const ModelFile& file, const std::string& prefix, int64_t hidden,
                          int64_t ffn) {
  SwiGlu out;
  ASSIGN_OR_RETURN(out.gate, LoadMatrix(file, prefix + "ffn_gate", ffn, hidden));
  ASSIGN_OR_RETURN(out.up, LoadMatrix(file, prefix + "ffn_up", ffn, hidden));
  ASSIGN_OR_RETURN(out.down, LoadMatrix(file, prefix + "ffn_down", hidden, ffn));
  return out;
}

}  // namespace cairn::reference
