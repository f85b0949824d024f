// The pieces the reference models are written in: plain loops over double, one row after the other.
// Nothing here shares code with the kernels, except the definition of the file's number formats.
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/model_file.h"

namespace cairn::reference {

using Row = std::vector<double>;
using Rows = std::vector<Row>;  // [tokens][width]

// W [n, k], dequantised, and an optional bias [n].
struct Matrix {
  int64_t n = 0, k = 0;
  std::vector<float> w;  // [n, k]
  Row bias;

  Row operator()(const Row& x) const;    // W x + bias
  Rows operator()(const Rows& x) const;  // the same for each row
};

// NAME.weight [n, k] with NAME.bias if the file has it. Errors: NotFound, Unsupported, DataLoss.
Result<Matrix> LoadMatrix(const ModelFile& file, const std::string& name, int64_t n, int64_t k);
// A tensor of n elements in file order.
Result<Row> LoadVector(const ModelFile& file, const std::string& name, int64_t n);

double Sigmoid(double x);
double Silu(double x);
Rows Silu(Rows x);  // of each element
double Softplus(double x);
double Gelu(double x);  // tanh form

// w * x / sqrt(mean(x^2) + eps) for each sub-row of w.size() elements.
Row RmsNorm(const Row& x, const Row& w, double eps);
Rows RmsNorm(const Rows& x, const Row& w, double eps);
void Add(Rows& x, const Rows& y);
void Multiply(Rows& x, double factor);

// Rotates the first 2 * inv_freq.size() dims of each head of width d at the row's position.
// half_split: pairs (i, i + n/2); else (2i, 2i + 1).
void Rotate(Rows& x, const std::vector<double>& inv_freq, int64_t d, bool half_split,
            double magnitude = 1);

// softmax(q . k * scale) v over the keys 0..t of row t, or its last `window` ones; query head h
// reads key head h / (heads / kv_heads). Scale 0: 1 / sqrt(d).
Rows CausalAttention(const Rows& q, const Rows& k, const Rows& v, int heads, int kv_heads,
                     int64_t d, double scale = 0, int64_t window = INT64_MAX);

// W_down (SiLU(W_gate x) * W_up x), or with another activation.
struct SwiGlu {
  Matrix gate, up, down;
  double (*activation)(double) = Silu;
  Rows operator()(const Rows& x) const;
};
Result<SwiGlu> LoadSwiGlu(const ModelFile& file, const std::string& prefix, int64_t hidden,
                          int64_t ffn);

}  // namespace cairn::reference
