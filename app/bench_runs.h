// The runs of `cairn bench`: timed requests through the engine as the server runs it.
//
// Threads: one caller; the engine has its own.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "base/token.h"
#include "engine/engine.h"
#include "model/model.h"

namespace cairn {

struct BenchSizes {
  int64_t prefill = 512;  // tokens of a timed prompt
  int64_t decode = 32;    // tokens of a timed generation
  int64_t depth = 0;      // tokens already in the state before either; restored, not timed
  int repeat = 3;         // runs of each figure; the median counts
};

// Tokens behind `depth` that a timed generation takes of the context: a short prompt, the one token
// that it gives, and those that are timed.
int64_t DecodeTokens(const BenchSizes& sizes);

class BenchRuns {
 public:
  struct Branch {
    double cold_seconds, branch_seconds;
    int64_t restore_point, replayed;
  };

  BenchRuns(const BenchSizes& sizes, std::shared_ptr<const Model> model, Engine& engine);

  // Tokens a second of one prompt, after `depth` tokens.
  Result<double> Prefill();
  // Tokens a second of `batch` sequences that decode at once, each after `depth` tokens.
  Result<double> Decode(int batch);
  // A prompt of `tokens`, then the same changed at `share` of its length.
  Result<Branch> MeasureBranch(int64_t tokens, double share);

 private:
  struct Outcome {
    ReuseReport reuse;
    EndEvent end;
  };

  std::vector<Token> Prompt(int64_t count, int seed) const;
  // `depth` tokens that are in the cache afterwards; the same for all runs.
  Result<std::vector<Token>> CachedContext();
  // The context and `count` tokens behind it.
  Result<std::vector<Token>> Behind(int64_t count, int seed);
  static Result<Outcome> Wait(TokenStream& stream);
  Result<Outcome> RunOne(std::vector<Token> prompt, int64_t max_tokens, bool cache);

  const BenchSizes sizes_;
  std::shared_ptr<const Model> model_;
  Engine& engine_;
};

}  // namespace cairn
