#include "scenarios/plain_memo.h"

#include "base/check.h"
#include "engine/plain_run.h"

namespace cairn::law {
namespace {

constexpr size_t kPieceRows = 64;

}  // namespace

PlainMemo::PlainMemo(const Model& model, CpuLevel level, const KernelFaults* faults)
    : real_(model),
      model_(model, faults, nullptr),
      runner_(model_, level, /*threads=*/1, kPieceRows),
      empty_(model_) {}

std::span<const float> PlainMemo::Logits(std::span<const Token> prefix) {
  const uint64_t key = KeyOf(prefix);
  auto it = logits_.find(key);
  if (it == logits_.end()) {
    RunPiece(prefix);
    it = logits_.find(key);
  }
  return it->second;
}

uint64_t PlainMemo::State(std::span<const Token> prefix) {
  const uint64_t key = KeyOf(prefix);
  auto it = states_.find(key);
  if (it == states_.end()) {
    RunPiece(prefix);
    it = states_.find(key);
  }
  return it->second;
}

void PlainMemo::Clear() {
  logits_.clear();
  states_.clear();
  snapshots_.clear();
}

// 64 bits of mixing per token: prefixes of one test never meet by chance.
uint64_t PlainMemo::KeyOf(std::span<const Token> prefix) {
  uint64_t key = prefix.size();
  for (const Token token : prefix) {
    key = (key ^ static_cast<uint64_t>(token + 1)) * 0x9e3779b97f4a7c15u;
    key ^= key >> 32;
  }
  return key;
}

const PlainMemo::Sequence& PlainMemo::Snapshot(std::span<const Token> prefix) {
  if (prefix.empty()) return empty_;
  const uint64_t key = KeyOf(prefix);
  auto it = snapshots_.find(key);
  if (it == snapshots_.end()) {
    RunPiece(prefix);
    it = snapshots_.find(key);
  }
  return it->second;
}

// The piece that ends at the end of `prefix`, and those before it that are not known yet.
void PlainMemo::RunPiece(std::span<const Token> prefix) {
  CHECK(!prefix.empty());
  const size_t begin = (prefix.size() - 1) / kPieceRows * kPieceRows;
  Sequence sequence(Snapshot(prefix.first(begin)));
  cairn::testing::TestPiece piece[] = {{&sequence, prefix.subspan(begin), {}}};
  const std::vector<float> rows = runner_.Step(piece);
  rows_run_ += static_cast<int64_t>(prefix.size() - begin);
  const size_t vocab = static_cast<size_t>(model_.info().vocab_size);
  for (size_t i = begin; i < prefix.size(); ++i) {
    const auto row = rows.begin() + static_cast<std::ptrdiff_t>((i - begin) * vocab);
    logits_.try_emplace(KeyOf(prefix.first(i + 1)), row, row + static_cast<std::ptrdiff_t>(vocab));
  }
  const uint64_t key = KeyOf(prefix);
  states_[key] = StateDigest(real_, sequence.state(), sequence.blocks(), sequence.position);
  if (prefix.size() % kPieceRows == 0) snapshots_.emplace(key, std::move(sequence));
}

}  // namespace cairn::law
