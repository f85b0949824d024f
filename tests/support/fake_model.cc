#include "support/fake_model.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "base/check.h"

namespace cairn {
namespace {

constexpr uint64_t kEmptyPrefix = 0x9e3779b97f4a7c15ull;

uint64_t Mix(uint64_t x) {  // splitmix64's finaliser
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

uint64_t Append(uint64_t hash, Token token) {
  return Mix(hash + 0x632be59bd9b4e019ull * static_cast<uint64_t>(token + 1));
}

// The hash travels in the hidden row as four floats of 16 bits each: exact.
constexpr int kHiddenSize = 4;

StateLayout MakeLayout(const FakeModelOptions& options) {
  std::vector<StatePart> parts = {{0, FullKv{16}}};
  if (options.hybrid) {
    parts.push_back({1, Recurrent{16}});
    parts.push_back({1, Conv{16}});
    parts.push_back({2, FullKv{16}});
  }
  if (options.idle_kv_bytes > 0) parts.push_back({3, FullKv{options.idle_kv_bytes}});
  return std::move(StateLayout::Create(parts, kHiddenSize * sizeof(float))).value();
}

class FakeWorkspace : public Workspace {
 public:
  size_t bytes() const override { return 0; }
  std::vector<uint64_t> row_hashes;
  int rows_max = 0, logit_rows_max = 0;
};

}  // namespace

// One KV row: what token stands here and the hash of the prefix that ends with it.
struct FakeModel::Row {
  uint64_t hash;
  int32_t position_plus_one;  // 0 in a row that was never written
  Token token;
};

FakeModel::FakeModel(FakeModelOptions options)
    : options_(std::move(options)), layout_(MakeLayout(options_)) {
  info_.name = "fake";
  info_.architecture = options_.hybrid ? "fake-hybrid" : "fake-kv";
  info_.vocab_size = options_.vocab_size;
  info_.hidden_size = kHiddenSize;
  info_.layer_count = 3;
  info_.context_length = info_.trained_context_length = options_.context_length;
  info_.fingerprint = options_.hybrid ? 1 : 2;
}

std::unique_ptr<Workspace> FakeModel::CreateWorkspace(int rows_max, int logit_rows_max, int) const {
  auto workspace = std::make_unique<FakeWorkspace>();
  workspace->row_hashes.reserve(rows_max);
  workspace->rows_max = rows_max;
  workspace->logit_rows_max = logit_rows_max;
  return workspace;
}

void FakeModel::Forward(const KernelContext&, const ForwardBatch& batch,
                        Workspace& workspace) const {
  if (options_.on_forward) options_.on_forward(batch);
  auto& w = static_cast<FakeWorkspace&>(workspace);
  if (static_cast<int>(batch.tokens.size()) > w.rows_max) Violation("more rows than rows_max");
  if (static_cast<int>(batch.logit_rows.size()) > w.logit_rows_max)
    Violation("more logit rows than logit_rows_max");
  if (options_.checks) CheckBatch(batch);
  w.row_hashes.clear();
  for (const ForwardSlice& slice : batch.slices) RunSlice(slice, batch.tokens, w.row_hashes);
  rows_run_ += static_cast<int64_t>(batch.tokens.size());
  for (size_t i = 0; i < batch.logit_rows.size(); ++i)
    FillLogits(w.row_hashes[batch.logit_rows[i]], batch.logits + i * options_.vocab_size);
}

void FakeModel::CheckBatch(const ForwardBatch& batch) const {
  std::set<const std::byte*> states, written_blocks;
  int row = 0;
  bool one = false, more = false;
  for (const ForwardSlice& s : batch.slices) {
    if (s.row_begin != row || s.row_count < 1) Violation("slices do not cover the rows in order");
    row += s.row_count;
    (s.row_count == 1 ? one : more) = true;
    if (s.state == nullptr || !states.insert(s.state).second) Violation("two slices, one state");
    const int64_t end = s.position + s.row_count;
    if (static_cast<int64_t>(s.blocks.size()) * kBlockTokens < end) Violation("too few blocks");
    for (int64_t b = s.position / kBlockTokens; b * kBlockTokens < end; ++b)
      if (!written_blocks.insert(s.blocks[b]).second) Violation("two slices write into one block");
    for (const ForwardTap& tap : s.taps)
      if (!states.insert(tap.state).second) Violation("a tap shares a state buffer");
    if (s.position % kBlockTokens != 0) ++mid_block_;
  }
  if (row != static_cast<int>(batch.tokens.size())) Violation("slices do not cover all rows");
  if (one && more) ++mixed_steps_;
  batch_max_ = std::max<int>(batch_max_, static_cast<int>(batch.slices.size()));
  for (Token t : batch.tokens)
    if (t < 0 || t >= options_.vocab_size) Violation("token out of range");
}

FakeModel::Row* FakeModel::RowAt(const ForwardSlice& slice, int64_t position) const {
  std::byte* block = slice.blocks[position / kBlockTokens];
  return reinterpret_cast<Row*>(block + layout_.kv_offset(0)) + position % kBlockTokens;
}

// The hash of the prefix before the slice, after checking every trace of it.
uint64_t FakeModel::CheckHistory(const ForwardSlice& slice) const {
  uint64_t hash = kEmptyPrefix;
  for (int64_t p = 0; p < slice.position; ++p) {
    const Row& row = *RowAt(slice, p);
    hash = Append(hash, row.token);
    const std::string where = " at " + std::to_string(p) + " of " + std::to_string(slice.position);
    if (row.position_plus_one != p + 1 || row.hash != hash) {
      Violation("KV row of another history" + where);
      return hash;
    }
    if (!options_.hybrid) continue;
    const std::byte* block = slice.blocks[p / kBlockTokens];
    const Row* second =
        reinterpret_cast<const Row*>(block + layout_.kv_offset(3)) + p % kBlockTokens;
    if (std::memcmp(second, &row, sizeof(Row)) != 0) Violation("second KV part differs" + where);
  }
  if (!options_.hybrid) return hash;
  uint64_t state[2];
  std::memcpy(state, slice.state + layout_.state_offset(1), sizeof state);
  if (slice.position == 0) {
    if (state[0] != 0 || state[1] != 0) Violation("the state of an empty prefix is not zero");
    return hash;
  }
  if (state[0] != hash || state[1] != static_cast<uint64_t>(slice.position))
    Violation("state of another prefix at " + std::to_string(slice.position) + ", it says " +
              std::to_string(state[1]));
  uint64_t conv[2];
  std::memcpy(conv, slice.state + layout_.state_offset(2), sizeof conv);
  if (conv[0] != ~hash || conv[1] != static_cast<uint64_t>(RowAt(slice, slice.position - 1)->token))
    Violation("conv state of another prefix");
  return hash;
}

void FakeModel::RunSlice(const ForwardSlice& slice, std::span<const Token> tokens,
                         std::vector<uint64_t>& row_hashes) const {
  uint64_t hash = kEmptyPrefix;
  if (options_.checks)
    hash = CheckHistory(slice);
  else if (slice.position > 0)
    hash = RowAt(slice, slice.position - 1)->hash;
  size_t tap = 0;
  for (int r = 0; r < slice.row_count; ++r) {
    const Token token = tokens[slice.row_begin + r];
    const int64_t position = slice.position + r;
    hash = Append(hash, token);
    row_hashes.push_back(hash);
    const Row row{hash, static_cast<int32_t>(position + 1), token};
    std::memcpy(RowAt(slice, position), &row, sizeof row);
    if (options_.hybrid) {
      std::byte* block = slice.blocks[position / kBlockTokens];
      std::memcpy(block + layout_.kv_offset(3) + (position % kBlockTokens) * sizeof row, &row,
                  sizeof row);
    }
    for (; tap < slice.taps.size() && slice.taps[tap].row == r; ++tap) {
      WriteState(slice.taps[tap].state, hash, position + 1, token);
      if (r + 1 < slice.row_count) ++taps_inside_;
    }
    if (r + 1 == slice.row_count) WriteState(slice.state, hash, position + 1, token);
  }
  if (tap != slice.taps.size()) Violation("taps are not ascending rows of the slice");
}

void FakeModel::WriteState(std::byte* buffer, uint64_t hash, int64_t position, Token last) const {
  if (options_.hybrid) {
    const uint64_t state[2] = {hash, static_cast<uint64_t>(position)};
    std::memcpy(buffer + layout_.state_offset(1), state, sizeof state);
    const uint64_t conv[2] = {~hash, static_cast<uint64_t>(last)};
    std::memcpy(buffer + layout_.state_offset(2), conv, sizeof conv);
  }
  float hidden[kHiddenSize];
  for (int i = 0; i < kHiddenSize; ++i) hidden[i] = static_cast<float>((hash >> (16 * i)) & 0xffff);
  std::memcpy(buffer + layout_.hidden_offset(), hidden, sizeof hidden);
}

void FakeModel::Logits(const KernelContext&, std::span<const float* const> hidden_rows,
                       float* logits, Workspace& workspace) const {
  if (static_cast<int>(hidden_rows.size()) > static_cast<FakeWorkspace&>(workspace).logit_rows_max)
    Violation("more logit rows than logit_rows_max");
  for (size_t i = 0; i < hidden_rows.size(); ++i) {
    uint64_t hash = 0;
    for (int j = 0; j < kHiddenSize; ++j)
      hash |= static_cast<uint64_t>(hidden_rows[i][j]) << (16 * j);
    FillLogits(hash, logits + i * options_.vocab_size);
  }
}

void FakeModel::FillLogits(uint64_t hash, float* logits) const {
  for (int t = 0; t < options_.vocab_size; ++t) {
    const int key = options_.logit_period > 0 ? t % options_.logit_period : t;
    logits[t] = static_cast<float>(Mix(hash + static_cast<uint64_t>(key)) >> 44) * 0x1.0p-17f;
  }
}

uint64_t FakeModel::HashOf(std::span<const Token> prefix) {
  uint64_t hash = kEmptyPrefix;
  for (Token t : prefix) hash = Append(hash, t);
  return hash;
}

std::vector<float> FakeModel::LogitsOf(std::span<const Token> prefix) const {
  std::vector<float> logits(options_.vocab_size);
  FillLogits(HashOf(prefix), logits.data());
  return logits;
}

void FakeModel::Violation(std::string what) const {
  std::lock_guard lock(mutex_);
  if (violations_.size() < 50) violations_.push_back(std::move(what));
}

std::vector<std::string> FakeModel::violations() const {
  std::lock_guard lock(mutex_);
  return violations_;
}

std::vector<std::string> FakeModel::TakeViolations() {
  std::lock_guard lock(mutex_);
  return std::exchange(violations_, {});
}

}  // namespace cairn
