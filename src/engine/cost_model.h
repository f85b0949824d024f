// What a step costs, learnt from the steps that ran: fixed + per row + per row x depth. The engine
// sizes the pieces of long prompts with it, so that streams keep their pace. It only ever decides
// how much runs in a step; bits never depend on it.
//
// Pure: time comes in as numbers. Threads: one thread.
#pragma once

#include <array>
#include <optional>

namespace cairn {

struct StepShape {
  int rows = 0;
  double depth_sum = 0;  // sum of the positions of all rows
  friend StepShape operator+(StepShape a, StepShape b) {
    return {a.rows + b.rows, a.depth_sum + b.depth_sum};
  }
};

// The rows of the streams of a step, now and as deep as when there was no prompt beside them.
struct StreamShapes {
  StepShape now, before;
};

// How long a step may take while streams run.
struct StepTarget {
  double factor;     // times what its streams took before the prompt came
  double floor_ms;   // never less than this
  double least = 1;  // nor than so many times what they alone take by now: streams grow
};

class CostModel {
 public:
  enum class Kind { kDecode, kPrefill };
  // Steps of one kind only fade as others of that kind arrive: an hour without prompts does not
  // make the model forget what a prompt row costs. piece: rows of prompts beside streams, if any.
  void Observe(Kind kind, StepShape shape, double ms, int piece = 0);
  double Predict(StepShape shape) const;
  // Prompt rows at `depth` that fit beside the streams; from 1 to rows_max. At first a careful
  // guess, from which pieces grow. What rounding down leaves goes to the next call: where a row
  // takes 8 ms, a prompt would otherwise lose a third of its time. Called once before a step with
  // streams and a prompt.
  int RowsWithin(const StreamShapes& streams, double depth, const StepTarget& target, int rows_max);

  double row_ms_at(double depth) const;  // of one more row there

 private:
  static constexpr int kTerms = 3;
  using Vector = std::array<double, kTerms>;
  struct Sums {  // of the normal equations, each step weighted by 1 / ms^2: relative errors count
    std::array<Vector, kTerms> xx{};
    Vector xy{};
    void Scale(double factor);
  };
  static Vector Features(StepShape shape);
  static std::optional<Vector> SolveSet(Sums s, unsigned set);
  void Solve();

  std::array<Sums, 2> sums_{};
  Vector terms_{};                 // >= 0
  std::array<bool, 2> trained_{};  // by kind
  std::array<int, 2> late_{};      // steps in a row that took far longer than foreseen, by kind
  double spare_rows_ = 0;          // < 1
  int piece_ = 0;                  // the last one
};

}  // namespace cairn
