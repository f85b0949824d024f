#include "cache/reuse_model.h"

#include <algorithm>
#include <bit>

namespace cairn {
namespace {

// The guess before anything is known: a leaf of age a is used again with 1 / (2 a + 2) a request.
constexpr double kGuess[kReuseRoles] = {1, 0.3, 0.2, 0.1, 1};
constexpr double kShapeWeight = 6;  // hits that the guess is worth
constexpr double kRatioWeight = 2;
constexpr double kHitsMax = 4000;  // then all that is known counts half

double Guess(int role, int age) {
  const double requests = age == 0 ? 0 : static_cast<double>(uint64_t{1} << (age - 1));
  return kGuess[role] / (2 * requests + 2);
}

}  // namespace

ReuseClass::ReuseClass(MarkKinds kinds, ReuseRole role, int uses) {
  // Of several kinds the one that is likeliest to be used.
  static constexpr MarkKinds kOrder[] = {kMarkFinish, kMarkEnd,     kMarkBranch,
                                         kMarkTurn,   kMarkNearEnd, kMarkGrid};
  int kind = 0;
  while (kind < 5 && (kinds & kOrder[kind]) == 0) ++kind;
  const int bucket = uses < 2 ? std::max(uses, 0) : uses < 4 ? 2 : 3;
  index_ = static_cast<uint8_t>((kind * kReuseRoles + static_cast<int>(role)) * 4 + bucket);
}

int ReuseModel::AgeBucket(uint64_t age) { return std::min<int>(std::bit_width(age), kAges - 1); }

ReuseModel::ReuseModel() { Refresh(); }

void ReuseModel::Refresh() {
  if (hits_ >= kHitsMax) Fade();
  for (int role = 0; role < kReuseRoles; ++role) {
    // What is known of an age is the guess for the next: rates halve, roughly, as ages double.
    double guess = Guess(role, 0);
    for (int a = 0; a < kAges; ++a) {
      Estimate& e = shape_[role][a];
      if (a > 0) guess = shape_[role][a - 1].rate * Guess(role, a) / Guess(role, a - 1);
      e.rate = (e.hits + kShapeWeight) / (e.expected + kShapeWeight / guess);
    }
  }
  for (Estimate& e : ratio_) e.rate = (e.hits + kRatioWeight) / (e.expected + kRatioWeight);
}

void ReuseModel::Record(ReuseClass c, uint64_t from, uint64_t age, bool hit) {
  const int role = static_cast<int>(c.role());
  const int last = AgeBucket(age);
  Estimate& ratio = ratio_[c.index()];
  // Bucket 0 is age 0, bucket b covers [2^(b-1), 2^b).
  for (int a = AgeBucket(from); a <= last; ++a) {
    const uint64_t begin = std::max(from, a == 0 ? 0 : uint64_t{1} << (a - 1));
    const uint64_t end = a == last ? age : a == 0 ? 1 : uint64_t{1} << a;
    const double waited = static_cast<double>(end - begin);
    ratio.expected += waited * shape_[role][a].rate;
    shape_[role][a].expected += waited;
  }
  if (hit) {
    ++shape_[role][last].hits;
    ++ratio.hits;
    ++hits_;
  }
}

void ReuseModel::Fade() {
  const auto halve = [](Estimate& e) {
    e.hits /= 2;
    e.expected /= 2;
  };
  hits_ /= 2;
  for (auto& ages : shape_) {
    for (Estimate& e : ages) halve(e);
  }
  for (Estimate& e : ratio_) halve(e);
}

}  // namespace cairn
