// Who is admitted next, and what the next step runs. Pure: data in, data out, no clock, no pool.
//
// Order everywhere: a smaller `priority` first; then keys (API key, else cache salt) take turns;
// then who waited longest. A step runs all decode rows, then pieces of prompts: a quarter of the
// rows goes to the shortest prompts, so that a short one never waits behind long ones; the rest to
// whoever's turn it is, so that long prompts take turns with whole pieces.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

namespace cairn {

struct PlanSequence {
  int index;             // the caller's name for it
  int64_t rows_wanted;   // tokens that are not in the state yet, >= 1; 1 = a decode row
  bool logits_each_row;  // prompt_logprobs: every row takes a logit row, else the last one does
  int priority = 0;
  uint64_t key_rows = 0;  // FairShare::rows of its key
  uint64_t led_turn = 0;  // when it last had its turn
  double row_cost = 1;    // in (0, 1]: of a prompt's row, beside that of the deepest prompt
};

struct PlanLimits {
  int rows_max;        // rows of one step
  int logit_rows_max;  // rows with logits in one step
  // Of them in pieces of prompts, at a row_cost of 1: more rows that cost less.
  int prefill_rows_max = std::numeric_limits<int>::max();
};

struct PlannedRows {
  int index;
  int rows;
};

// Replaces `plan`; allocates nothing once it has the capacity. Order: decode rows, then prefills.
// Each sequence appears at most once; sum of rows <= rows_max; logit rows <= logit_rows_max. If any
// sequence wants rows, at least one gets some. Where there are fewer rows than decoding sequences,
// `turn` rotates who goes first. Returns the index of the prefill whose turn it was.
std::optional<int> Plan(std::span<const PlanSequence> sequences, const PlanLimits& limits,
                        uint64_t turn, std::vector<PlannedRows>& plan);

// A request that waits for a slot.
struct Candidate {
  int priority = 0;
  bool preempted = false;  // it had a slot already
  int key_running = 0;     // sequences of its key that hold slots
  uint64_t key_rows = 0;
  friend auto operator<=>(const Candidate& a, const Candidate& b) {
    if (auto c = a.priority <=> b.priority; c != 0) return c;
    if (auto c = b.preempted <=> a.preempted; c != 0) return c;
    if (auto c = a.key_running <=> b.key_running; c != 0) return c;
    return a.key_rows <=> b.key_rows;
  }
};

// Rows that each key has had. A key that comes back after a pause starts where the least served of
// the others is: idle time is no credit.
class FairShare {
 public:
  void Enter(uint64_t key);  // one more request of this key is in the engine
  void Leave(uint64_t key);
  void Charge(uint64_t key, int rows);
  uint64_t rows(uint64_t key) const;
  size_t size() const { return keys_.size(); }

 private:
  struct Key {
    uint64_t key;
    int64_t requests;
    uint64_t rows;
  };
  Key* Find(uint64_t key);
  const Key* Find(uint64_t key) const;
  std::vector<Key> keys_;  // with requests in the engine; few
};

}  // namespace cairn
