// One random case of the law: an engine with random limits, stepped by hand, serves requests that
// share prefixes, while checkpoints are evicted, requests cancelled and sequences preempted. Every
// row of logits that a token was sampled from, every token, every prompt logprob and the states of
// the checkpoints must equal the plain cold run's, bit for bit.
//
// Threads: one, and the engine's pool.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "scenarios/plain_memo.h"
#include "scenarios/watched_model.h"
#include "support/engine_harness.h"

namespace cairn::law {

// How often what came along; a test of the law is worth something only if all of it did.
struct Coverage {
  BatchCounts batches;
  int64_t cases = 0, requests = 0, cancelled = 0, refused = 0, full_hits = 0, partial_hits = 0;
  int64_t rows_compared = 0, prompt_rows_compared = 0, states_compared = 0;
  int64_t restores_inside_block = 0, restores_off_grid = 0, mixed_steps = 0;
  int64_t evictions = 0, evicted_then_replayed = 0, preemptions = 0;
  int64_t generated_long_context = 0;  // tokens sampled behind two segments of keys

  Coverage& operator+=(const Coverage& other);
};

struct CaseSetup {
  const Model& model;  // a real one, from LoadModel
  CpuLevel level;
  PlainMemo& plain;  // same model, any level
  const KernelFaults* kernel_faults = nullptr;
  TestFaults engine_faults = {};
  CacheFault cache_fault = CacheFault::kNone;
};

class LawCase {
 public:
  // The prompts depend on the seed alone, so cases of one seed on other levels share plain runs.
  LawCase(const CaseSetup& setup, uint64_t seed);
  ~LawCase();

  // Runs it. The first difference found, or nothing.
  std::string Run();
  const Coverage& coverage() const { return coverage_; }

 private:
  struct Row {  // seen by the observer in this step
    size_t request;
    int64_t position;
    std::vector<float> logits;
  };
  struct Running {
    Request request;
    std::shared_ptr<TokenStream> stream;
    Outcome outcome;
    bool cancelled = false;
    bool ran_before = false;  // its whole prompt ended an earlier request
    bool ended = false;
  };

  int Int(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  bool Chance(int one_in) { return Int(1, one_in) == 1; }
  EngineOptions RandomOptions();
  void LimitMemory(EngineOptions& options);
  void LimitPools();
  std::vector<Token> RandomPrompt(std::mt19937_64& random) const;
  Request RandomRequest();
  void Submit();
  void EvictSome();
  void Disturb();
  void Step();
  void Collect();
  void CheckEnd(Running& running);
  void CheckRow(const Row& row);
  void CheckToken(const Running& running, size_t index);
  void CheckPromptLogprobs(const Running& running);
  void CountReuse(const Running& running);
  void CheckStates(int count_max);
  void CheckState(const std::vector<Token>& tokens, const std::string& salt);
  void Fail(const std::string& what);
  std::vector<Token> TokensOf(const Running& running) const;

  const CaseSetup setup_;
  const uint64_t seed_;
  const Model& model_;
  std::mt19937_64 random_;
  Coverage coverage_;
  WatchedModel watched_;
  bool limited_ = false;
  EngineOptions options_;
  EngineObserver observer_;
  EngineStats stats_;
  std::unique_ptr<EngineCore> core_;
  std::vector<Row> rows_;
  std::vector<Running> requests_;
  std::set<std::vector<Token>> ended_prompts_;
  std::set<uint64_t> checked_nodes_;
  uint64_t evictions_before_ = 0;
  std::string difference_;
  SamplerScratch scratch_;
};

}  // namespace cairn::law
