#include "model/layers/step.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/check.h"
#include "kernels/matmul.h"
#include "kernels/panel_arena.h"

namespace cairn {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kSlicesReserved = 64;
constexpr size_t kTapsReserved = 256;

// Hands out aligned pieces of one buffer; with base == null it only measures.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}
  std::byte* Take(size_t bytes) {
    std::byte* piece = base_ == nullptr ? nullptr : base_ + used_;
    used_ += AlignUp(bytes, kAlignment);
    return piece;
  }
  float* Floats(int64_t rows, int64_t width) {
    return reinterpret_cast<float*>(Take(static_cast<size_t>(rows * width) * sizeof(float)));
  }
  size_t used() const { return used_; }

 private:
  std::byte* base_;
  size_t used_ = 0;
};

size_t AttentionBytes(const ScratchNeeds& needs, int rows_max, int64_t positions_max, int threads) {
  if (!needs.attention.has_value()) return 0;
  return AttentionScratchBytes(*needs.attention, rows_max, positions_max, threads);
}

void CarveExperts(Carver& carver, const ScratchNeeds& needs, int rows_max, ExpertScratch& out) {
  const size_t pairs = static_cast<size_t>(rows_max) * needs.experts_used;
  const size_t experts = needs.experts;
  const size_t activation_bytes =
      needs.experts == 0 ? 0 : ActivationBytes(static_cast<int>(pairs), needs.expert_k);
  const auto take = [&]<typename T>(T*& to, size_t count) {
    to = reinterpret_cast<T*>(carver.Take(count * sizeof(T)));
  };
  take(out.ids, pairs);
  take(out.weights, pairs);
  take(out.slots, pairs);
  take(out.rows, pairs);
  take(out.offsets, experts + 1);
  take(out.groups, experts);
  take(out.matmuls, experts);
  out.activations = {carver.Take(activation_bytes), activation_bytes};
}

}  // namespace

ModelWorkspace::ModelWorkspace(const ScratchNeeds& needs, int rows_max, int logit_rows_max,
                               int threads, int64_t positions_max)
    : rows_max(rows_max), logit_rows_max(logit_rows_max) {
  CHECK(rows_max >= 1 && logit_rows_max >= 0 && threads >= 1);
  const size_t activation_bytes =
      ActivationBytes(std::max(rows_max, logit_rows_max), needs.matmul_k);
  const size_t normed_bytes = needs.int8_normed ? ActivationBytes(rows_max, needs.hidden) : 0;
  const size_t glu_bytes = needs.glu == 0 ? 0 : ActivationBytes(rows_max, needs.glu);
  const size_t attention_bytes = AttentionBytes(needs, rows_max, positions_max, threads);
  const auto carve = [&](std::byte* base) {
    Carver carver(base);
    hidden = carver.Floats(rows_max, needs.hidden);
    normed = carver.Floats(rows_max, needs.hidden);
    branch = carver.Floats(rows_max, needs.hidden);
    projected = carver.Floats(rows_max, needs.projected);
    staged = carver.Floats(rows_max, needs.staged);
    mixed = carver.Floats(rows_max, needs.mixed);
    gates = carver.Floats(rows_max, needs.gates);
    head_rows = carver.Floats(logit_rows_max, needs.hidden);
    rope_cos = carver.Floats(rows_max, needs.rope_half);
    rope_sin = carver.Floats(rows_max, needs.rope_half);
    local_cos = carver.Floats(rows_max, needs.local_rope_half);
    local_sin = carver.Floats(rows_max, needs.local_rope_half);
    positions = reinterpret_cast<int64_t*>(carver.Take(sizeof(int64_t) * rows_max));
    activations = {carver.Take(activation_bytes), activation_bytes};
    normed_space = {carver.Take(normed_bytes), normed_bytes};
    glu = {carver.Take(glu_bytes), glu_bytes};
    attention = {carver.Take(attention_bytes), attention_bytes};
    routed = carver.Floats(rows_max, needs.routed);
    CarveExperts(carver, needs, rows_max, experts);
    return carver.used();
  };
  memory_bytes_ = carve(nullptr);
  Result<std::shared_ptr<std::byte>> memory = PanelArena().Allocate(memory_bytes_);
  if (!memory.ok()) throw std::bad_alloc();  // as any other allocation here
  memory_ = std::move(*memory);
  carve(memory_.get());
  attention_slices.reserve(kSlicesReserved);
  recurrent_slices.reserve(kSlicesReserved);
  taps.reserve(kTapsReserved);
}

std::span<const AttentionSlice> Step::AttentionSlices(size_t kv_offset) const {
  scratch.attention_slices.clear();
  for (const ForwardSlice& slice : slices) {
    scratch.attention_slices.push_back({.row_begin = slice.row_begin,
                                        .row_count = slice.row_count,
                                        .position = slice.position,
                                        .blocks = slice.blocks,
                                        .layer_offset = kv_offset});
  }
  return scratch.attention_slices;
}

std::span<const RecurrentSlice> Step::RecurrentSlices(size_t state_offset) const {
  const auto part = [&](std::byte* state) {
    return reinterpret_cast<float*>(state + state_offset);
  };
  scratch.taps.clear();
  for (const ForwardSlice& slice : slices) {
    for (const ForwardTap& tap : slice.taps) {
      scratch.taps.push_back({.row = tap.row, .dst = part(tap.state)});
    }
  }
  scratch.recurrent_slices.clear();
  const StateTap* next_tap = scratch.taps.data();
  for (const ForwardSlice& slice : slices) {
    scratch.recurrent_slices.push_back({.row_begin = slice.row_begin,
                                        .row_count = slice.row_count,
                                        .state = part(slice.state),
                                        .taps = {next_tap, slice.taps.size()}});
    next_tap += slice.taps.size();
  }
  return scratch.recurrent_slices;
}

}  // namespace cairn
