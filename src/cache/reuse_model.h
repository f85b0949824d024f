// How often checkpoints of one kind are used again, learnt from what happened to them so far.
//
// A checkpoint waits: from its last use until it is restored (a hit), its path is used otherwise,
// or it is evicted. Waiting time is counted in requests and split by age, so that
//   rate(class, age) = shape(role, age) * ratio(class)
// is the chance that the next request restores a checkpoint of this class and age. `shape` is hits
// over waiting time of all checkpoints of a role at that age; `ratio` is a class's hits over the
// hits that `shape` expected of it. Both are pulled towards a guess (rarer with age) while few hits
// are known, and old observations fade. What was evicted counts with the time it waited, so the
// estimate stays right although the policy itself decides who waits.
//
// Threads: a value. Deterministic: sums and quotients in a fixed order.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "cache/marks.h"

namespace cairn {

// Where a checkpoint lies on its path.
enum class ReuseRole : uint8_t {
  kLeaf,    // nothing behind it
  kSecond,  // one checkpoint behind it
  kThird,
  kInner,   // more
  kBranch,  // several paths behind it
};
inline constexpr int kReuseRoles = 5;

class ReuseClass {
 public:
  static constexpr int kCount = 6 * kReuseRoles * 4;
  ReuseClass() = default;
  // uses: how often the checkpoint (of a branch) or its conversation (else) was used before.
  ReuseClass(MarkKinds kinds, ReuseRole role, int uses);
  int index() const { return index_; }
  ReuseRole role() const { return static_cast<ReuseRole>(index_ / 4 % kReuseRoles); }
  friend bool operator==(ReuseClass, ReuseClass) = default;

 private:
  uint8_t index_ = 0;  // (kind * kReuseRoles + role) * 4 + uses
};

class ReuseModel {
 public:
  ReuseModel();
  // A checkpoint waited from age `from` to `age` requests; then it was restored (hit), or not.
  // Rates follow with Refresh, so that many can be recorded at once.
  void Record(ReuseClass c, uint64_t from, uint64_t age, bool hit);
  void Refresh();
  // Chance that the next request restores it.
  double Rate(ReuseClass c, uint64_t age) const {
    const int a = AgeBucket(age);
    return shape_[static_cast<int>(c.role())][a].rate * ratio_[c.index()].rate;
  }

 private:
  static constexpr int kAges = 24;  // age 0, 1, 2-3, 4-7, ...
  struct Estimate {
    double hits = 0;
    double expected = 0;  // waiting time, or the hits expected
    double rate = 0;
  };
  static int AgeBucket(uint64_t age);
  void Fade();

  std::array<std::array<Estimate, kAges>, kReuseRoles> shape_;
  std::array<Estimate, ReuseClass::kCount> ratio_;
  double hits_ = 0;
};

}  // namespace cairn
