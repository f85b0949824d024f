#include "support/golden.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/check.h"

namespace cairn::testing {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) std::fprintf(stderr, "cannot read %s\n", path.c_str());
  CHECK(in.good());
  return std::string(std::istreambuf_iterator<char>(in), {});
}

nlohmann::json ReadJson(const std::string& path) { return nlohmann::json::parse(ReadFile(path)); }

template <typename T>
std::vector<double> LogSoftmax(const T* x, int64_t n) {
  double max = -INFINITY, sum = 0;
  for (int64_t i = 0; i < n; ++i) max = std::max(max, static_cast<double>(x[i]));
  for (int64_t i = 0; i < n; ++i) sum += std::exp(x[i] - max);
  std::vector<double> out(n);
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] - max - std::log(sum);
  return out;
}

}  // namespace

NpyArray ReadNpy(const std::string& path) {
  const std::string file = ReadFile(path);
  CHECK(file.size() >= 10 && file.compare(0, 8, std::string("\x93NUMPY\x01\x00", 8)) == 0);
  uint16_t header_bytes;
  std::memcpy(&header_bytes, file.data() + 8, 2);
  const std::string header = file.substr(10, header_bytes);
  CHECK(header.find("'<f4'") != std::string::npos);
  CHECK(header.find("'fortran_order': False") != std::string::npos);
  NpyArray array;
  int64_t count = 1;
  const char* at = header.c_str() + header.find("'shape': (") + 10;
  while (*at != ')') {
    char* end;
    array.shape.push_back(std::strtoll(at, &end, 10));
    count *= array.shape.back();
    at = end;
    while (*at == ',' || *at == ' ') ++at;
  }
  CHECK(file.size() == 10 + header_bytes + count * sizeof(float));
  array.data.resize(count);
  std::memcpy(array.data.data(), file.data() + 10 + header_bytes, count * sizeof(float));
  return array;
}

const GoldenCase& GoldenSet::Case(const std::string& name) const {
  for (const GoldenCase& c : cases) {
    if (c.name == name) return c;
  }
  CHECK(false && "no such golden case");
  return cases[0];
}

double GoldenSet::LogitsStd() const {
  double sum = 0, squares = 0;
  for (const float x : logits.data) sum += x, squares += static_cast<double>(x) * x;
  const double mean = sum / logits.data.size();
  return std::sqrt(squares / logits.data.size() - mean * mean);
}

NpyArray LastPositions(NpyArray stored, const std::vector<int64_t>& shape) {
  if (shape.size() != 3 || stored.shape.size() != 3 || stored.shape[1] <= shape[1]) return stored;
  const int64_t tokens = stored.shape[1], d = stored.shape[2];
  NpyArray last{{stored.shape[0], shape[1], d}, {}};
  for (int64_t h = 0; h < stored.shape[0]; ++h) {
    const auto end = stored.data.begin() + (h + 1) * tokens * d;
    last.data.insert(last.data.end(), end - shape[1] * d, end);
  }
  return last;
}

GoldenSet LoadGoldenSet(const std::string& name, const std::string& variant) {
  return LoadGoldenDirectory(kGoldenData + name + "/", variant);
}

GoldenSet LoadGoldenDirectory(const std::string& directory, const std::string& variant) {
  GoldenSet set;
  set.directory = directory;
  const auto json = ReadJson(set.directory + "cases.json");
  for (const auto& c : json.at("cases")) {
    set.cases.push_back({.name = c.at("name"),
                         .tokens = c.at("tokens"),
                         .positions = c.at("positions"),
                         .first_row = c.at("first_row"),
                         .states = c.value("states", false)});
  }
  set.logits = ReadNpy(set.directory + (variant.empty() ? "" : variant + ".") + "logits.npy");
  return set;
}

std::vector<GoldenContinuation> LoadContinuations(const std::string& name) {
  std::vector<GoldenContinuation> out;
  const auto json = ReadJson(kGoldenData + name + "/generate.json");
  for (const auto& g : json) {
    out.push_back({.prompt = g.at("prompt"), .tokens = g.at("tokens")});
  }
  return out;
}

GoldenLoss LoadGoldenLoss(const std::string& name, const std::string& section,
                          const std::string& subsection) {
  const auto json = ReadJson(kGoldenData + name + "/reference.json");
  const auto& loss = subsection.empty() ? json.at(section) : json.at(section).at(subsection);
  return {loss.at("kl_median"), loss.at("kl_mean"), loss.at("kl_max")};
}

std::vector<GoldenVariant> LoadGoldenVariants(const std::string& directory) {
  std::vector<GoldenVariant> out;
  const auto json = ReadJson(directory + "/reference.json");
  for (const auto& [name, v] : json.at("variants").items()) {
    GoldenVariant variant{.name = name,
                          .path = v.at("path"),
                          .kind = v.at("kind"),
                          .what = v.at("what"),
                          .yardstick = {}};
    if (v.contains("yardstick")) {
      const auto& loss = v.at("yardstick");
      variant.yardstick = {loss.at("kl_median"), loss.at("kl_mean"), loss.at("kl_max")};
    }
    out.push_back(std::move(variant));
  }
  return out;
}

template <typename T>
void LogitsError::Add(const float* stored, const T* computed) {
  const std::vector<double> p = LogSoftmax(stored, vocab_), q = LogSoftmax(computed, vocab_);
  double kl = 0;
  for (int64_t i = 0; i < vocab_; ++i) {
    const double difference = static_cast<double>(computed[i]) - stored[i];
    // Not std::max, which would drop a NaN.
    if (!(std::abs(difference) <= max_abs_)) max_abs_ = std::abs(difference);
    squares_ += difference * difference;
    kl += std::exp(p[i]) * (p[i] - q[i]);
  }
  kl_.push_back(kl);
  const int64_t best = std::max_element(stored, stored + vocab_) - stored;
  const int64_t computed_best = std::max_element(computed, computed + vocab_) - computed;
  if (stored[best] - stored[computed_best] > 0.01f) ++argmax_errors_;
}
template void LogitsError::Add(const float*, const float*);
template void LogitsError::Add(const float*, const double*);

double LogitsError::rms() const { return std::sqrt(squares_ / (kl_.size() * vocab_)); }

double LogitsError::kl_median() const {
  std::vector<double> sorted = kl_;
  std::sort(sorted.begin(), sorted.end());
  const size_t n = sorted.size();
  return n % 2 == 1 ? sorted[n / 2] : 0.5 * (sorted[n / 2 - 1] + sorted[n / 2]);
}

double LogitsError::kl_mean() const {
  double sum = 0;
  for (const double kl : kl_) sum += kl;
  return sum / kl_.size();
}

double LogitsError::kl_max() const { return *std::max_element(kl_.begin(), kl_.end()); }

std::string LogitsError::ToString() const {
  char text[200];
  std::snprintf(text, sizeof text,
                "rows %d max %.2e rms %.2e kl median %.2e mean %.2e max %.2e argmax errors %d",
                rows(), max_abs(), rms(), kl_median(), kl_mean(), kl_max(), argmax_errors());
  return text;
}

}  // namespace cairn::testing
