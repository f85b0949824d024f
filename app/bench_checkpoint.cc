#include "bench_checkpoint.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "base/bytes.h"
#include "state/block_pool.h"
#include "state/sequence_state.h"
#include "state/state_pool.h"

namespace cairn {
namespace {

constexpr int kRuns = 9;
constexpr int kRows = 64;  // of one step
// Checkpoints taken in it, to lift them out of the noise: so many that they weigh this much.
constexpr int kTapsMin = 8, kTapsMax = kRows;
constexpr size_t kTappedBytes = size_t{16} << 20;
constexpr int kStart = 96;  // tokens before it: a restore there copies a partly filled block
static_assert(kStart + kRows == kCheckpointBenchTokens);

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The best of several runs: whatever else the machine does only adds to a time.
double Best(const std::vector<double>& v) { return *std::min_element(v.begin(), v.end()); }

class CheckpointBench {
 public:
  CheckpointBench(const Model& model, const KernelContext& ctx)
      : model_(model),
        ctx_(ctx),
        blocks_(model.layout()),
        states_(model.layout()),
        workspace_(model.CreateWorkspace(kRows, 1, ctx.pool->thread_count())) {
    for (int i = 0; i < kStart; ++i) tokens_.push_back(i % model.info().vocab_size);
  }

  Result<CheckpointFigures> Run() {
    CheckpointFigures f{};
    f.state_bytes = model_.layout().buffer_bytes();
    ASSIGN_OR_RETURN(SequenceState start, SequenceState::Create(blocks_, states_));
    RETURN_IF_ERROR(Forward(start, kStart, {}));
    const auto wanted = static_cast<int>(kTappedBytes / f.state_bytes);
    const int taps = std::clamp(wanted, kTapsMin, kTapsMax);
    std::vector<double> plain, tapped, restore;
    for (int i = 0; i < kRuns; ++i) {
      ASSIGN_OR_RETURN(const double p, TimeStep(start, 0));
      ASSIGN_OR_RETURN(const double t, TimeStep(start, taps));
      const double begin = Now();
      ASSIGN_OR_RETURN(const SequenceState restored, Restore(start));
      restore.push_back(Now() - begin);
      plain.push_back(p);
      tapped.push_back(t);
    }
    const double save = (Best(tapped) - Best(plain)) / taps;
    const double bytes = static_cast<double>(f.state_bytes);
    const bool copies_block =
        model_.layout().kv_bytes_per_token() > 0 && kStart % kBlockTokens != 0;
    const double restored_bytes =
        bytes + (copies_block ? static_cast<double>(model_.layout().block_bytes()) : 0);
    if (save > 0) f.save = CheckpointFigures::Save{1e3 * save, bytes / save / 1e9};
    f.restore_ms = 1e3 * Best(restore);
    f.restore_gbps = restored_bytes / Best(restore) / 1e9;
    f.memcpy_gbps = bytes / Copy(start.state()) / 1e9;
    return f;
  }

 private:
  Result<SequenceState> Restore(const SequenceState& from) {
    return SequenceState::Restore(blocks_, states_, from.length(), from.blocks(),
                                  {from.state(), model_.layout().buffer_bytes()});
  }

  // One step of kRows after `start`, the first of `taps` states taken at its first row, and so on;
  // buffers are fresh, as in the engine.
  Result<double> TimeStep(const SequenceState& start, int taps) {
    ASSIGN_OR_RETURN(SequenceState state, Restore(start));
    std::vector<StateBuffer> buffers;
    std::vector<ForwardTap> forward_taps;
    for (int i = 0; i < taps; ++i) {
      ASSIGN_OR_RETURN(StateBuffer buffer, states_.Allocate());
      buffers.push_back(std::move(buffer));
      forward_taps.push_back({i * kRows / std::max(1, taps), buffers.back().data()});
    }
    const double begin = Now();
    RETURN_IF_ERROR(Forward(state, kRows, forward_taps));
    return Now() - begin;
  }

  Status Forward(SequenceState& state, int count, std::span<const ForwardTap> taps) {
    for (int done = 0; done < count; done += kRows) {
      const int rows = std::min(kRows, count - done);
      RETURN_IF_ERROR(state.Reserve(rows));
      const ForwardSlice slice{.row_begin = 0,
                               .row_count = rows,
                               .position = state.length(),
                               .blocks = state.block_pointers(),
                               .state = state.state(),
                               .taps = taps};
      model_.Forward(ctx_,
                     {.tokens = std::span(tokens_).first(rows),
                      .slices = {&slice, 1},
                      .logit_rows = {},
                      .logits = nullptr},
                     *workspace_);
      state.Advance(rows);
    }
    return {};
  }

  double Copy(const std::byte* from) const {
    AlignedBuffer to(model_.layout().buffer_bytes());
    std::vector<double> seconds;
    for (int i = 0; i < kRuns; ++i) {
      const double begin = Now();
      std::memcpy(to.data(), from, to.size());
      seconds.push_back(Now() - begin);
    }
    return Best(seconds);
  }

  const Model& model_;
  const KernelContext ctx_;
  BlockPool blocks_;
  StatePool states_;
  std::unique_ptr<Workspace> workspace_;
  std::vector<Token> tokens_;
};

}  // namespace

Result<CheckpointFigures> MeasureCheckpoint(const Model& model, const KernelContext& ctx) {
  return CheckpointBench(model, ctx).Run();
}

}  // namespace cairn
