#include "engine/cost_model.h"

#include <algorithm>
#include <cmath>
#include <optional>

namespace cairn {
namespace {

// Features of about one, so that the equations are well scaled.
constexpr double kRowsUnit = 64;
constexpr double kDepthUnit = 64.0 * 4096;
// About as many steps back as the model looks, by kind.
constexpr std::array<double, 2> kKept = {0.99, 0.97};
// How much the terms so far count, in each term's own share: what the recent steps say nothing
// about stays as it was.
constexpr double kInertia = 1e-4;
constexpr int kFirstRows = 16;
// Steps that take so much longer than foreseen, more than one in a row: the machine or what runs on
// it has changed, and what older steps say about prompts is worth less each time.
constexpr double kLate = 1.5;
constexpr double kKeptIfLate = 0.5;
constexpr double kMsMin = 1e-3;

}  // namespace

CostModel::Vector CostModel::Features(StepShape shape) {
  return {1, shape.rows / kRowsUnit, shape.depth_sum / kDepthUnit};
}

void CostModel::Sums::Scale(double factor) {
  for (Vector& row : xx)
    for (double& value : row) value *= factor;
  for (double& value : xy) value *= factor;
}

void CostModel::Observe(Kind kind, StepShape shape, double ms, int piece) {
  ms = std::max(ms, kMsMin);
  const int k = static_cast<int>(kind);
  if (piece > 0) piece_ = piece;
  late_[k] = trained_[k] && ms > kLate * Predict(shape) ? late_[k] + 1 : 0;
  if (late_[k] > 1) sums_[static_cast<int>(Kind::kPrefill)].Scale(kKeptIfLate);
  Sums& sums = sums_[k];
  sums.Scale(kKept[k]);
  const Vector x = Features(shape);
  const double weight = 1 / (ms * ms);
  for (int i = 0; i < kTerms; ++i) {
    for (int j = 0; j < kTerms; ++j) sums.xx[i][j] += weight * x[i] * x[j];
    sums.xy[i] += weight * x[i] * ms;
  }
  Solve();
  trained_[k] = true;
}

// Minimum of the squared error with only the terms of `set` above zero; nothing if one of them
// comes out below. By elimination: the equations are symmetric and, with inertia, positive
// definite.
std::optional<CostModel::Vector> CostModel::SolveSet(Sums s, unsigned set) {
  const auto in = [&](int i) { return (set >> i & 1U) != 0; };
  for (int i = 0; i < kTerms; ++i) {
    if (!in(i)) continue;
    if (!(s.xx[i][i] > 0)) return std::nullopt;
    for (int j = i + 1; j < kTerms; ++j) {
      if (!in(j)) continue;
      const double f = s.xx[j][i] / s.xx[i][i];
      for (int k = i; k < kTerms; ++k) s.xx[j][k] -= f * s.xx[i][k];
      s.xy[j] -= f * s.xy[i];
    }
  }
  Vector terms{};
  for (int i = kTerms - 1; i >= 0; --i) {
    if (!in(i)) continue;
    double rest = s.xy[i];
    for (int j = i + 1; j < kTerms; ++j)
      if (in(j)) rest -= s.xx[i][j] * terms[j];
    terms[i] = rest / s.xx[i][i];
    if (!(terms[i] >= 0)) return std::nullopt;
  }
  return terms;
}

// Least squares with terms >= 0: of all sets of terms that may be above zero, the best one.
void CostModel::Solve() {
  Sums all = sums_[0];
  for (int i = 0; i < kTerms; ++i) {
    for (int j = 0; j < kTerms; ++j) all.xx[i][j] += sums_[1].xx[i][j];
    all.xy[i] += sums_[1].xy[i];
  }
  for (int i = 0; i < kTerms; ++i) {
    const double inertia = kInertia * all.xx[i][i];
    all.xx[i][i] += inertia;
    all.xy[i] += inertia * terms_[i];
  }
  double best = 0;
  Vector terms{};
  for (unsigned set = 1; set < 1U << kTerms; ++set) {
    const std::optional<Vector> found = SolveSet(all, set);
    if (!found) continue;
    double gain = 0;  // how much smaller the squared error is than with all terms at zero
    for (int i = 0; i < kTerms; ++i) gain += (*found)[i] * all.xy[i];
    if (gain > best) best = gain, terms = *found;
  }
  terms_ = terms;
}

double CostModel::Predict(StepShape shape) const {
  const Vector x = Features(shape);
  double ms = 0;
  for (int i = 0; i < kTerms; ++i) ms += terms_[i] * x[i];
  return ms;
}

int CostModel::RowsWithin(const StreamShapes& streams, double depth, const StepTarget& target,
                          int rows_max) {
  if (!trained_[static_cast<int>(Kind::kPrefill)]) return std::min(rows_max, kFirstRows);
  const double now_ms = Predict(streams.now);
  const double before_ms = std::min(now_ms, Predict(streams.before));
  const double room_ms =
      std::max({target.factor * before_ms, target.floor_ms, target.least * now_ms}) - now_ms;
  if (std::isinf(room_ms)) return rows_max;
  // What the steps so far do not tell apart (rows and their depth, deep in a prompt) may come out
  // as nothing: a piece is at most twice the one before.
  rows_max = std::min(rows_max, std::max(kFirstRows, 2 * piece_));
  const double row = row_ms_at(depth);
  if (!(room_ms < row * rows_max)) return rows_max;
  const double rows = room_ms / row + spare_rows_;
  const int whole = std::clamp(static_cast<int>(rows), 1, rows_max);
  spare_rows_ = std::clamp(rows - whole, 0.0, 1.0);
  return whole;
}

double CostModel::row_ms_at(double depth) const {
  return terms_[1] / kRowsUnit + terms_[2] * depth / kDepthUnit;
}

}  // namespace cairn
