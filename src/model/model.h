// A loaded model: pure functions from tokens and states to hidden rows and logits. The engine knows
// models only through this header.
//
// Threads: immutable after load, shared by const reference; a Workspace is used by one Forward at a
// time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/token.h"
#include "kernels/kernel_context.h"
#include "state/state_layout.h"

namespace cairn {

struct ModelInfo {
  std::string name;          // general.name of the file, or its stem
  std::string architecture;  // "qwen35", "llama"
  std::string quantization;  // most frequent matrix type, e.g. "Q4_0"
  int vocab_size = 0;
  int hidden_size = 0;
  int layer_count = 0;
  int64_t context_length = 0;  // in force: --context-length or the declared one
  int64_t trained_context_length = 0;
  int64_t parameter_count = 0;
  size_t weight_bytes = 0;            // resident, repacked
  size_t bytes_per_decode_token = 0;  // weight bytes read for one token
  uint64_t fingerprint =
      0;  // ModelFingerprint: weights hash, layout, KV type, rope as loaded, numerics version
};

// After row `row` of the slice (0-based), the complete state is also written to `state` (a state
// buffer of the layout).
struct ForwardTap {
  int row;
  std::byte* state;
};

// Consecutive tokens of one sequence in this step.
struct ForwardSlice {
  int row_begin = 0;  // first row in ForwardBatch::tokens
  int row_count = 0;
  int64_t position = 0;  // absolute position of row_begin = tokens already in the state
  std::span<std::byte* const>
      blocks;  // KV blocks covering [0, position + row_count); empty if the layout has no KV
  std::byte* state = nullptr;        // live state buffer; in: after `position` tokens; out: after
                                     // position + row_count, final hidden row included
  std::span<const ForwardTap> taps;  // ascending by row
};

struct ForwardBatch {
  std::span<const Token>
      tokens;  // [rows], rows <= the workspace's rows_max; every id in [0, vocab_size)
  std::span<const ForwardSlice>
      slices;  // cover tokens without gap, in order; no two name one state buffer
  std::span<const int> logit_rows;  // rows whose logits are wanted, ascending; <= logit_rows_max
  float* logits = nullptr;          // out [logit_rows, vocab_size]
};

// Scratch of Forward for up to rows_max rows; allocated once, so a steady step allocates nothing.
class Workspace {
 public:
  virtual ~Workspace() = default;
  virtual size_t bytes() const = 0;
};

class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelInfo& info() const = 0;
  virtual const StateLayout& layout() const = 0;
  virtual std::unique_ptr<Workspace> CreateWorkspace(int rows_max, int logit_rows_max,
                                                     int threads) const = 0;

  // Runs the rows through all layers. Cannot fail: all that may fail was checked before. States and
  // KV rows change in place. The logits of a row depend only on the tokens up to and including it
  // (docs/exactness.md).
  virtual void Forward(const KernelContext& ctx, const ForwardBatch& batch,
                       Workspace& workspace) const = 0;

  // Logits [rows, vocab_size] of final hidden rows (hidden_bytes of a state buffer each): what a
  // restore with nothing to replay needs.
  virtual void Logits(const KernelContext& ctx, std::span<const float* const> hidden_rows,
                      float* logits, Workspace& workspace) const = 0;
};

}  // namespace cairn
