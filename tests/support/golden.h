// Golden fixtures of tests/golden/data: token sequences with the logits and states that a float64
// implementation of the checkpoint's equations gives. See tests/golden/README.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/token.h"

namespace cairn::testing {

struct NpyArray {
  std::vector<int64_t> shape;
  std::vector<float> data;
};
// A little-endian float32 .npy file in C order. A broken file fails the calling test by CHECK.
NpyArray ReadNpy(const std::string& path);

// The last positions of a stored k or v [heads, T, d] where `shape` has fewer of them: a window
// layer keeps no more. Others as they are.
NpyArray LastPositions(NpyArray stored, const std::vector<int64_t>& shape);

struct GoldenCase {
  std::string name;
  std::vector<Token> tokens;
  std::vector<int> positions;  // rows with stored logits
  int first_row = 0;           // of `positions` in the logits array
  bool states = false;         // states/ holds the state after the last token
};

struct GoldenContinuation {
  std::vector<Token> prompt, tokens;
};

// How far a program may be from the stored logits, as measured for another one.
struct GoldenLoss {
  double kl_median = 0, kl_mean = 0, kl_max = 0;
};

struct GoldenSet {
  std::string directory;
  std::vector<GoldenCase> cases;
  NpyArray logits;  // [rows, vocab]

  const GoldenCase& Case(const std::string& name) const;
  const float* Row(const GoldenCase& c, size_t i) const {
    return &logits.data[(c.first_row + i) * logits.shape[1]];
  }
  double LogitsStd() const;
};

inline const std::string kGoldenData = "tests/golden/data/";

// NAME/cases.json with NAME/logits.npy, or NAME/VARIANT.logits.npy.
GoldenSet LoadGoldenSet(const std::string& name, const std::string& variant = "");
// The same of a directory, which ends in '/'.
GoldenSet LoadGoldenDirectory(const std::string& directory, const std::string& variant = "");

// A file or directory beside the logits, as tools/golden/make.py lists them in reference.json.
struct GoldenVariant {
  std::string name, path;
  std::string kind;  // "float": all share logits.npy; "quantised", "quantised experts":
                     // NAME.logits.npy and a yardstick
  std::string what;
  GoldenLoss yardstick;
};
std::vector<GoldenVariant> LoadGoldenVariants(const std::string& directory);
std::vector<GoldenContinuation> LoadContinuations(const std::string& name);
// reference.json: section / subsection ("" for none).
GoldenLoss LoadGoldenLoss(const std::string& name, const std::string& section,
                          const std::string& subsection = "");

// Distances of computed rows from stored ones.
class LogitsError {
 public:
  explicit LogitsError(int64_t vocab) : vocab_(vocab) {}
  template <typename T>
  void Add(const float* stored, const T* computed);

  double max_abs() const { return max_abs_; }
  double rms() const;
  double kl_median() const;
  double kl_mean() const;
  double kl_max() const;
  // Rows whose best token differs though the stored best leads by more than 0.01.
  int argmax_errors() const { return argmax_errors_; }
  int rows() const { return static_cast<int>(kl_.size()); }
  std::string ToString() const;

 private:
  int64_t vocab_;
  double max_abs_ = 0, squares_ = 0;
  int argmax_errors_ = 0;
  std::vector<double> kl_;  // KL(stored || computed) per row, nats
};

}  // namespace cairn::testing
