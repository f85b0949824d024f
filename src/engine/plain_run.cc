#include "engine/plain_run.h"

#include <xxhash.h>

#include <algorithm>
#include <numeric>

#include "model/decoder_model.h"

namespace cairn {
namespace {

constexpr int kDigestRows = 32;  // logits rows kept at once by FeedWithDigests

}  // namespace

uint64_t LogitsDigest(std::span<const float> logits) {
  return XXH3_64bits(logits.data(), logits.size_bytes());
}

uint64_t StateDigest(const Model& model, const std::byte* state, std::span<std::byte* const> blocks,
                     int64_t length) {
  XXH3_state_t* hash = XXH3_createState();
  XXH3_64bits_reset_withSeed(hash, static_cast<uint64_t>(length));
  const StateLayout& layout = model.layout();
  XXH3_64bits_update(hash, state + layout.hidden_offset(), layout.hidden_bytes());
  for (const StateTensor& tensor : ExportState(model, state, blocks, length)) {
    XXH3_64bits_update(hash, tensor.data.data(), tensor.data.size() * sizeof(float));
  }
  const uint64_t digest = XXH3_64bits_digest(hash);
  XXH3_freeState(hash);
  return digest;
}

Result<std::unique_ptr<PlainRun>> PlainRun::Create(const Model& model, const KernelContext& ctx,
                                                   int rows_max) {
  auto blocks = std::make_unique<BlockPool>(model.layout());
  auto states = std::make_unique<StatePool>(model.layout());
  ASSIGN_OR_RETURN(SequenceState state, SequenceState::Create(*blocks, *states));
  return std::unique_ptr<PlainRun>(
      new PlainRun(model, ctx, rows_max, std::move(state), std::move(blocks), std::move(states)));
}

PlainRun::PlainRun(const Model& model, const KernelContext& ctx, int rows_max, SequenceState state,
                   std::unique_ptr<BlockPool> blocks, std::unique_ptr<StatePool> states)
    : model_(model),
      ctx_(ctx),
      rows_max_(rows_max),
      vocab_(model.info().vocab_size),
      blocks_(std::move(blocks)),
      states_(std::move(states)),
      state_(std::move(state)),
      workspace_(model.CreateWorkspace(rows_max, kDigestRows, ctx.pool->thread_count())),
      logits_(kDigestRows * vocab_) {}

Status PlainRun::Feed(std::span<const Token> tokens) {
  const int last = static_cast<int>(tokens.size()) - 1;
  return Run(tokens, {&last, 1});
}

Status PlainRun::FeedAll(std::span<const Token> tokens) {
  for (size_t i = 0; i < tokens.size(); i += rows_max_) {
    RETURN_IF_ERROR(Feed(tokens.subspan(i, std::min<size_t>(rows_max_, tokens.size() - i))));
  }
  return {};
}

Status PlainRun::FeedWithDigests(std::span<const Token> tokens, std::vector<uint64_t>& digests) {
  // All rows run as one piece if their logits fit; else in pieces of kDigestRows.
  for (size_t i = 0; i < tokens.size(); i += kDigestRows) {
    const auto piece = tokens.subspan(i, std::min<size_t>(kDigestRows, tokens.size() - i));
    std::vector<int> rows(piece.size());
    std::iota(rows.begin(), rows.end(), 0);
    RETURN_IF_ERROR(Run(piece, rows));
    for (size_t r = 0; r < piece.size(); ++r)
      digests.push_back(LogitsDigest({logits_.data() + r * vocab_, vocab_}));
  }
  return {};
}

Status PlainRun::Run(std::span<const Token> tokens, std::span<const int> logit_rows) {
  CHECK(!tokens.empty() && static_cast<int>(tokens.size()) <= rows_max_);
  const int rows = static_cast<int>(tokens.size());
  RETURN_IF_ERROR(state_.Reserve(rows));
  const ForwardSlice slice{.row_begin = 0,
                           .row_count = rows,
                           .position = state_.length(),
                           .blocks = state_.block_pointers(),
                           .state = state_.state(),
                           .taps = {}};
  model_.Forward(
      ctx_,
      {.tokens = tokens, .slices = {&slice, 1}, .logit_rows = logit_rows, .logits = logits_.data()},
      *workspace_);
  state_.Advance(rows);
  last_logit_row_ = logit_rows.size() - 1;
  return {};
}

uint64_t PlainRun::state_digest() const {
  return StateDigest(model_, state_.state(), state_.block_pointers(), state_.length());
}

}  // namespace cairn
