#include "engine/cost_model.h"

#include <algorithm>
#include <cmath>

namespace cairn {
namespace {

// Features of about one, so that the equations are well scaled.
constexpr double kRowsUnit = 64;
constexpr double kDepthUnit = 64.0 * 4096;
// About as many steps back as the model looks, by kind.
constexpr std::array<double, 2> kKept = {0.95, 0.9};
constexpr int kSweeps = 60;
constexpr int kFirstRows = 16;
constexpr double kMsMin = 1e-3;

}  // namespace

CostModel::Vector CostModel::Features(StepShape shape) {
  return {1, shape.rows / kRowsUnit, shape.depth_sum / kDepthUnit};
}

void CostModel::Observe(Kind kind, StepShape shape, double ms) {
  ms = std::max(ms, kMsMin);
  const int k = static_cast<int>(kind);
  Sums& sums = sums_[k];
  const Vector x = Features(shape);
  const double weight = 1 / (ms * ms);
  for (int i = 0; i < kTerms; ++i) {
    for (int j = 0; j < kTerms; ++j)
      sums.xx[i][j] = kKept[k] * sums.xx[i][j] + weight * x[i] * x[j];
    sums.xy[i] = kKept[k] * sums.xy[i] + weight * x[i] * ms;
  }
  Solve();
  trained_[static_cast<size_t>(k)] = true;
}

// Least squares with terms >= 0 by coordinate descent. It starts from the last solution: what the
// recent steps say nothing about stays as it was.
void CostModel::Solve() {
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    for (int i = 0; i < kTerms; ++i) {
      double xx = 0, rest = 0;
      for (const Sums& s : sums_) {
        xx += s.xx[i][i];
        rest += s.xy[i];
        for (int j = 0; j < kTerms; ++j)
          if (j != i) rest -= s.xx[i][j] * terms_[j];
      }
      if (xx > 0) terms_[i] = std::max(0.0, rest / xx);
    }
  }
}

double CostModel::Predict(StepShape shape) const {
  const Vector x = Features(shape);
  double ms = 0;
  for (int i = 0; i < kTerms; ++i) ms += terms_[i] * x[i];
  return ms;
}

int CostModel::RowsWithin(const StreamShapes& streams, double depth, const StepTarget& target,
                          int rows_max) const {
  // Decode steps alone, all of one size, would say that rows cost nothing.
  if (!trained_[static_cast<size_t>(Kind::kPrefill)]) return std::min(rows_max, kFirstRows);
  const double now_ms = Predict(streams.now);
  const double before_ms = std::min(now_ms, Predict(streams.before));
  const double room_ms =
      std::max({target.factor * before_ms, target.floor_ms, target.least * now_ms}) - now_ms;
  const double row = row_ms_at(depth);
  if (!(room_ms < row * rows_max)) return rows_max;
  return std::clamp(static_cast<int>(room_ms / row), 1, rows_max);
}

double CostModel::row_ms_at(double depth) const {
  return terms_[1] / kRowsUnit + terms_[2] * depth / kDepthUnit;
}

}  // namespace cairn
