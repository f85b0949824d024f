// A model whose state is a hash, and a sequence that lives on the tree as the engine's do: what the
// tests of the prefix tree are made of. Every KV row and every state is a function of the tokens up
// to it, so a wrong byte anywhere is seen. Threads: one.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cache/prefix_tree.h"

namespace cairn {

using Tokens = std::vector<Token>;

inline Tokens RandomTokens(std::mt19937& rng, int64_t count, Token alphabet) {
  Tokens tokens(static_cast<size_t>(count));
  for (Token& token : tokens) token = static_cast<Token>(rng() % static_cast<uint32_t>(alphabet));
  return tokens;
}

struct FakeLayout {
  size_t kv_bytes_per_token = 8;  // 0 or 8
  size_t recurrent_bytes = 64;    // 0: trimmable
};

inline StateLayout MakeLayout(FakeLayout fake) {
  std::vector<StatePart> parts;
  if (fake.kv_bytes_per_token > 0) parts.push_back({0, FullKv{fake.kv_bytes_per_token}});
  if (fake.recurrent_bytes > 0) parts.push_back({1, Recurrent{fake.recurrent_bytes}});
  return StateLayout::Create(std::move(parts), 64).value();
}

inline uint64_t NextHash(uint64_t hash, Token token) {
  hash = (hash ^ static_cast<uint64_t>(token + 1)) * 0x9e3779b97f4a7c15u;
  return hash ^ (hash >> 29);
}

struct World {
  World(FakeLayout fake, CacheOptions options)
      : layout(MakeLayout(fake)), blocks(layout), states(layout), tree(layout, options) {}

  void Check() const {
    tree.CheckInvariants();
    blocks.CheckInvariants();
    EXPECT_LE(tree.bytes() + tree.reserved_bytes(), tree.options().bytes_max);
  }

  StateLayout layout;
  BlockPool blocks;
  StatePool states;
  PrefixTree tree;
};

// The state bytes after tokens whose hash is `hash`: that hash over and over, the hidden row too.
inline void FillState(const StateLayout& layout, std::byte* state, uint64_t hash) {
  for (size_t i = 0; i + 8 <= layout.buffer_bytes(); i += 8) std::memcpy(state + i, &hash, 8);
}

// Whether all rows and, if `has_state`, the state are those of `tokens`.
inline bool HoldsExactly(const World& world, const SequenceState& live,
                         std::span<const Token> tokens, bool has_state) {
  if (live.length() != static_cast<int64_t>(tokens.size())) return false;
  uint64_t hash = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    hash = NextHash(hash, tokens[i]);
    if (world.layout.block_bytes() == 0) continue;
    if (std::memcmp(live.block_pointers()[i / 64] + i % 64 * 8, &hash, 8) != 0) return false;
  }
  if (!has_state) return true;
  std::vector<std::byte> state(world.layout.buffer_bytes(), std::byte{0});
  if (!tokens.empty()) FillState(world.layout, state.data(), hash);
  return std::memcmp(state.data(), live.state(), state.size()) == 0;
}

// One request on the tree, in the order of calls that prefix_tree.h shows.
class FakeSequence {
 public:
  FakeSequence(World& world, Tokens prompt, std::string salt, int64_t stride,
               std::vector<int64_t> turn_starts = {})
      : world_(&world),
        tokens_(std::move(prompt)),
        prompt_(tokens_.size()),
        salt_(std::move(salt)),
        stride_(stride) {
    match_ = world.tree.Find(tokens_, salt_);
    lease_ = world.tree.Acquire(match_, salt_);
    state_.emplace(world.tree.Restore(lease_, world.blocks, world.states).value());
    MarkInputs in;
    in.prompt_tokens = n();
    in.restore_point = match_.restore_point;
    in.matched = match_.matched;
    in.stride = stride;
    in.turn_starts = turn_starts;
    in.trimmable = world.layout.trimmable();
    marks_ = PlanMarks(in);
    for (int64_t i = 0; i < state_->length(); ++i) hash_ = NextHash(hash_, tokens_[i]);
    // A trimmable layout keeps no hidden row at an arbitrary length.
    const bool has_state = !world.layout.trimmable();
    EXPECT_TRUE(
        HoldsExactly(world, *state_, std::span(tokens_).first(state_->length()), has_state));
  }

  int64_t n() const { return static_cast<int64_t>(prompt_); }
  int64_t length() const { return state_->length(); }
  const Match& match() const { return match_; }
  const Tokens& tokens() const { return tokens_; }
  const std::string& salt() const { return salt_; }
  const std::vector<Mark>& marks() const { return marks_; }
  const SequenceState& state() const { return *state_; }
  bool in_prefill() const { return length() < n(); }
  int64_t dropped() const { return dropped_; }
  void Generate(const Tokens& more) { tokens_.insert(tokens_.end(), more.begin(), more.end()); }

  // One step of up to `rows` rows.
  void Step(int64_t rows) {
    rows = std::min<int64_t>(rows, static_cast<int64_t>(tokens_.size()) - length());
    if (rows <= 0) return;
    const int64_t begin = length(), end = begin + rows;
    ASSERT_TRUE(state_->Reserve(rows).ok());
    std::vector<Mark> wanted;
    for (const Mark& mark : marks_) {
      if (mark.position > begin && mark.position <= end) wanted.push_back(mark);
    }
    for (int64_t p = std::max(begin, n()) + 1; p <= end; ++p) {
      if (IsGenerationGridMark(p, stride_, world_->layout.trimmable())) {
        wanted.push_back({p, kMarkGrid});
      }
    }
    const std::vector<Mark> marks = world_->tree.ReserveMarks(lease_, state_->blocks(), wanted);
    dropped_ += static_cast<int64_t>(wanted.size() - marks.size());
    std::vector<StateBuffer> taps;
    for (int64_t i = begin; i < end; ++i) {
      hash_ = NextHash(hash_, tokens_[i]);
      if (world_->layout.block_bytes() > 0) {
        std::memcpy(state_->block_pointers()[i / 64] + i % 64 * 8, &hash_, 8);
      }
      if (taps.size() < marks.size() && marks[taps.size()].position == i + 1) {
        taps.push_back(world_->states.Allocate().value());
        FillState(world_->layout, taps.back().data(), hash_);
      }
    }
    FillState(world_->layout, state_->state(), hash_);
    state_->Advance(rows);
    for (size_t i = 0; i < marks.size(); ++i) {
      const PublishResult result = Publish(marks[i], std::move(taps[i]));
      dropped_ += result == PublishResult::kDropped;
    }
    world_->tree.ReleaseMarks(lease_);
  }

  void RunPrompt(int64_t rows) {
    while (in_prefill()) Step(std::min(rows, n() - length()));
  }

  // Ends here, wherever that is; true if it left a finish checkpoint.
  bool Finish() {
    const std::span<const Token> path = std::span(tokens_).first(length());
    bool left = false;
    if (WantsFinishMark(length(), world_->tree.LastCheckpoint(lease_, path),
                        world_->layout.trimmable())) {
      left = Publish({length(), kMarkFinish}, state_->TakeState()) != PublishResult::kDropped;
    }
    lease_ = Lease();
    state_.reset();
    return left;
  }

 private:
  PublishResult Publish(const Mark& mark, StateBuffer buffer) {
    const PathType type = PathTypeAt(mark.position, n() / 4, n() - 4, n() % 2 == 0);
    return world_->tree.Publish(lease_, std::span(tokens_).first(mark.position), state_->blocks(),
                                std::move(buffer), mark.kinds, type);
  }

  World* world_;
  Tokens tokens_;  // prompt, then what was generated
  size_t prompt_;
  std::string salt_;
  int64_t stride_;
  Match match_;
  Lease lease_;
  std::optional<SequenceState> state_;
  std::vector<Mark> marks_;
  uint64_t hash_ = 0;
  int64_t dropped_ = 0;
};

// A whole request: prompt in steps of `rows`, then `generated` tokens. Returns its match.
inline Match RunRequest(World& world, const Tokens& prompt, int64_t stride, int64_t rows = 512,
                        const Tokens& generated = {}, const std::string& salt = "") {
  FakeSequence sequence(world, prompt, salt, stride);
  while (sequence.in_prefill()) {
    sequence.Step(std::min(rows, sequence.n() - sequence.length()));
    world.Check();
  }
  sequence.Generate(generated);
  for (size_t i = 0; i < generated.size(); ++i) {
    sequence.Step(1);
    world.Check();
  }
  const Match match = sequence.match();
  sequence.Finish();
  world.Check();
  return match;
}

}  // namespace cairn
