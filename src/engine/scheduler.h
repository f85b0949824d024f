// What the next step runs: decode rows first, then pieces of the prefills. Pure: data in, data out,
// no clock, no pool.
//
// The rows that are left after the decode rows are shared evenly between the prefills (a short
// prompt takes what it needs and leaves the rest to the others), so that a short prompt never waits
// behind a long one and a step never gets longer than rows_max rows. Where there are fewer rows
// than sequences, `turn` rotates who goes first.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace cairn {

struct PlanSequence {
  int index;             // the caller's name for it
  int64_t rows_wanted;   // tokens that are not in the state yet, >= 1; 1 = a decode row
  bool logits_each_row;  // prompt_logprobs: every row takes a logit row, else the last one does
};

struct PlanLimits {
  int rows_max;        // rows of one step
  int logit_rows_max;  // rows with logits in one step
};

struct PlannedRows {
  int index;
  int rows;
};

// Replaces `plan`; allocates nothing once it has the capacity. Order: decode rows, then prefills.
// Each sequence appears at most once; sum of rows <= rows_max; logit rows <= logit_rows_max. If any
// sequence wants rows, at least one gets some.
void Plan(std::span<const PlanSequence> sequences, const PlanLimits& limits, uint64_t turn,
          std::vector<PlannedRows>& plan);

}  // namespace cairn
