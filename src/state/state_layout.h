// What one sequence of a model has to remember, as bytes: the only thing state/, cache/ and engine/
// know of a model.
//
// Two stores:
//  - full-attention KV lies in blocks of 64 positions (block_pool.h). One block holds those
//    positions of *all* full-KV parts; part i lies at kv_offset(i) in the block.
//  - everything of fixed size lies in one state buffer (state_pool.h): recurrent and conv parts,
//    window KV, and the final hidden row (the row that enters the lm head) of the last position,
//    from which the logits are computed again. Part i lies at state_offset(i).
// A state is complete or nothing: there is no trim, shift or rewind.
//
// Threads: immutable after Create.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/status.h"

namespace cairn {

// Positions of a KV block; equal to kBlockPositions of kernels/attention.h (model/ checks it).
inline constexpr int64_t kBlockTokens = 64;

struct FullKv {
  size_t bytes_per_token;
};
struct WindowKv {
  int window;  // W positions
  size_t bytes_per_token;
  // A ring of whole blocks: those that positions p - W + 1 .. p can lie in (docs/adr/0009).
  int64_t blocks() const { return (window + kBlockTokens - 2) / kBlockTokens + 1; }
};
struct Recurrent {
  size_t bytes;
};
struct Conv {
  size_t bytes;
};
using StateKind = std::variant<FullKv, WindowKv, Recurrent, Conv>;

// One remembering part of one layer; a layer may have several (Falcon-H1: KV, SSM and conv).
struct StatePart {
  int layer;
  StateKind kind;
};

class StateLayout {
 public:
  // hidden_bytes: the final hidden row. Errors: kInvalidArgument (a part beyond 1 TiB, a window
  // without positions).
  static Result<StateLayout> Create(std::vector<StatePart> parts, size_t hidden_bytes);

  std::span<const StatePart> parts() const { return parts_; }
  size_t kv_offset(int part) const { return offsets_[part]; }     // REQUIRES: FullKv
  size_t state_offset(int part) const { return offsets_[part]; }  // REQUIRES: not FullKv
  size_t hidden_offset() const { return hidden_offset_; }
  size_t hidden_bytes() const { return hidden_bytes_; }

  size_t kv_bytes_per_token() const { return kv_bytes_per_token_; }
  size_t block_bytes() const { return kv_bytes_per_token_ * kBlockTokens; }
  // Bytes of recurrent, conv and window parts; what `inspect` calls the state.
  size_t state_bytes() const { return state_bytes_; }
  // Bytes of one state buffer: all fixed-size parts and the hidden row, each aligned to 64.
  size_t buffer_bytes() const { return buffer_bytes_; }
  // True if a sequence can be restored at any length (no part but FullKv).
  bool trimmable() const { return trimmable_; }

 private:
  std::vector<StatePart> parts_;
  std::vector<size_t> offsets_;
  size_t hidden_offset_ = 0, hidden_bytes_ = 0, kv_bytes_per_token_ = 0, state_bytes_ = 0,
         buffer_bytes_ = 0;
  bool trimmable_ = true;
};

}  // namespace cairn
