// Runs requests through the engine by hand or by its thread, and says what a perfect engine would
// answer.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine_core.h"
#include "support/fake_model.h"

namespace cairn {

// All a client sees of one request.
struct Outcome {
  std::vector<std::string> errors;  // wrong order of events
  std::optional<ReuseReport> reuse;
  std::vector<ProgressEvent> progress;
  std::vector<PromptLogprobsEvent> prompt_logprobs;
  std::vector<TokenEvent> token_events;
  std::vector<Token> tokens;
  std::optional<EndEvent> end;

  void Add(StreamEvent event);
  void AddAll(TokenStream& stream);  // what is there now
};

// Waits for the end (20 s at most).
Outcome Collect(TokenStream& stream);

// The answer of a plain run of this one request, by the model's definition.
Outcome ExpectedOutcome(const FakeModel& model, const Request& request,
                        const std::vector<Token>& end_tokens);

// Empty if `got` is `want` (tokens, logprobs, prompt logprobs, end), else the first difference.
// With `prefix`, got may stop early (cancelled).
std::string Difference(const Outcome& got, const Outcome& want, bool prefix = false);

std::vector<Token> RandomTokens(uint64_t seed, int64_t count, int vocab_size = 24);
std::vector<Token> Join(std::vector<Token> a, const std::vector<Token>& b);
Request MakeRequest(std::vector<Token> prompt, int64_t max_tokens);  // raw

// An EngineCore stepped by hand, with its invariants checked after each step.
class CoreDriver {
 public:
  explicit CoreDriver(FakeModelOptions model = {}, EngineOptions options = SmallOptions());
  ~CoreDriver();

  static EngineOptions SmallOptions();  // stride 32, 48 rows a step, 1 MiB of cache
  std::shared_ptr<TokenStream> Submit(Request request);
  void Step();
  void RunUntilIdle();
  Outcome Run(Request request);  // submits, runs until idle, and compares with the expected answer
  Outcome Run(std::vector<Token> prompt, int64_t max_tokens = 4);

  FakeModel& model() { return model_; }
  EngineCore& core() { return *core_; }
  EngineStats& stats() { return stats_; }
  const EngineOptions& options() const { return options_; }
  int64_t steps() const { return steps_; }
  std::vector<int64_t> Checkpoints(const std::vector<Token>& tokens, const std::string& salt = "");

 private:
  FakeModel model_;
  const EngineOptions options_;
  EngineObserver observer_;
  EngineStats stats_;
  std::unique_ptr<EngineCore> core_;
  uint64_t next_id_ = 1;
  int64_t steps_ = 0;
  bool more_ = false;
};

}  // namespace cairn
