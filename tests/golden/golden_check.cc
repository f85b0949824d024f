// golden_check DIRECTORY...: compares this build with reference logits and states that
// tools/golden/make.py wrote, for every format in each directory. Prints one line for each; exit
// status 1 if one is out of the limits of README.md or refused.
#include <cstdio>
#include <cstring>
#include <string>

#include "support/golden.h"
#include "support/golden_run.h"

namespace cairn {
namespace {

using testing::GoldenRun;
using testing::GoldenSet;
using testing::GoldenVariant;

constexpr double kLogitsMax = 1e-3, kLogitsRmsPerStd = 2e-5, kStatesMax = 1e-4;
constexpr double kQuantMedian = 1.4, kQuantMean = 1.6, kQuantMax = 4;
// With experts a rounding sends a token elsewhere now and then, and it and its followers move by
// units, in the yardstick as here: means and maxima say how many such tokens there were.
constexpr double kExpertsMedian = 4;

bool CheckFloat(const GoldenSet& set, const GoldenRun& run) {
  const double rms = run.logits.rms() / set.LogitsStd();
  std::printf("max %.1e (%.3f of the limit) rms/std %.1e argmax %d states %d %.1e",
              run.logits.max_abs(), run.logits.max_abs() / kLogitsMax, rms,
              run.logits.argmax_errors(), run.states_seen, run.states);
  bool has_states = false;
  for (const testing::GoldenCase& c : set.cases) has_states |= c.states;
  const bool states =
      run.states <= kStatesMax && run.states_unknown == 0 && (run.states_seen > 0) == has_states;
  return run.logits.max_abs() <= kLogitsMax && rms <= kLogitsRmsPerStd &&
         run.logits.argmax_errors() == 0 && states;
}

bool CheckQuantised(const GoldenVariant& variant, const GoldenRun& run) {
  const double median = run.logits.kl_median() / variant.yardstick.kl_median;
  const double mean = run.logits.kl_mean() / variant.yardstick.kl_mean;
  const double max = run.logits.kl_max() / variant.yardstick.kl_max;
  std::printf("KL median %.1e mean %.1e max %.1e; of the yardstick %.2f %.2f %.2f",
              run.logits.kl_median(), run.logits.kl_mean(), run.logits.kl_max(), median, mean, max);
  if (variant.kind == "quantised experts") return median <= kExpertsMedian;
  return median <= kQuantMedian && mean <= kQuantMean && max <= kQuantMax;
}

bool CheckVariant(const std::string& directory, const GoldenVariant& variant, CpuLevel level) {
  const bool is_float = variant.kind == "float";
  std::printf("%s %s (%s): ", directory.c_str(), variant.name.c_str(), variant.what.c_str());
  const auto model = testing::LoadWithFloatKv(directory + "/" + variant.path);
  if (!model.ok()) {
    std::printf("REFUSED %s\n", model.status().ToString().c_str());
    return false;
  }
  const GoldenSet set = testing::LoadGoldenDirectory(directory + "/", is_float ? "" : variant.name);
  const GoldenRun run = testing::RunGolden(**model, level, set, is_float);
  bool passed = run.misshapen.empty();
  if (!passed) std::printf("shape of %s ", run.misshapen.c_str());
  passed &= run.logits.rows() > 0;
  if (passed) passed = is_float ? CheckFloat(set, run) : CheckQuantised(variant, run);
  std::printf("%s\n", passed ? " ok" : " FAILED");
  return passed;
}

int Main(int argc, char** argv) {
  CpuLevel level = DetectCpuLevel();
  int checked = 0, failed = 0;
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], "--level=", 8) == 0) {
      for (const CpuLevel known : SupportedCpuLevels())
        if (std::strcmp(argv[i] + 8, CpuLevelName(known)) == 0) level = known;
      continue;
    }
    std::string directory = argv[i];
    while (directory.size() > 1 && directory.back() == '/') directory.pop_back();
    for (const GoldenVariant& variant : testing::LoadGoldenVariants(directory)) {
      ++checked;
      failed += CheckVariant(directory, variant, level) ? 0 : 1;
      std::fflush(stdout);
    }
  }
  std::printf("%d passed, %d failed on %s\n", checked - failed, failed, CpuLevelName(level));
  return checked > 0 && failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) { return cairn::Main(argc, argv); }
