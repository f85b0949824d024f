#include "bench_runs.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <variant>

#include "engine/request.h"
#include "engine/token_stream.h"

namespace cairn {
namespace {

constexpr int64_t kPromptTail = 16;  // tokens of a generation's prompt behind `depth`

// Random tokens, the same for the same seed.
std::vector<Token> RandomTokens(int64_t count, int vocab_size, uint64_t seed) {
  std::vector<Token> tokens(count);
  uint64_t x = seed * 0x9E3779B97F4A7C15ull + 1;
  for (Token& t : tokens) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    t = static_cast<Token>(x % static_cast<uint64_t>(vocab_size));
  }
  return tokens;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

template <typename Fn>
Result<double> MedianOf(int repeat, Fn fn) {
  std::vector<double> values;
  for (int i = 0; i < repeat; ++i) {
    ASSIGN_OR_RETURN(const double v, fn(i));
    values.push_back(v);
  }
  return Median(std::move(values));
}

Request MakeRequest(std::vector<Token> prompt, int64_t max_tokens, bool cache) {
  Request r;
  r.tail_begin = static_cast<int64_t>(prompt.size());
  r.prompt = std::move(prompt);
  r.raw = true;
  r.max_tokens = max_tokens;
  r.ignore_eos = true;
  r.cache_prompt = cache;
  return r;
}

}  // namespace

int64_t DecodeTokens(const BenchSizes& sizes) { return kPromptTail + 1 + sizes.decode; }

BenchRuns::BenchRuns(const BenchSizes& sizes, std::shared_ptr<const Model> model, Engine& engine)
    : sizes_(sizes), model_(std::move(model)), engine_(engine) {}

Result<double> BenchRuns::Prefill() {
  constexpr int kWarmUpSeed = 9999;
  // Once unmeasured, as llama-bench does: the first run maps the scratch, the state and the blocks.
  ASSIGN_OR_RETURN(auto first, Behind(sizes_.prefill, kWarmUpSeed));
  RETURN_IF_ERROR(RunOne(std::move(first), 0, sizes_.depth > 0).status());
  return MedianOf(sizes_.repeat, [&](int i) -> Result<double> {
    ASSIGN_OR_RETURN(auto prompt, Behind(sizes_.prefill, i));
    ASSIGN_OR_RETURN(const Outcome o, RunOne(std::move(prompt), 0, sizes_.depth > 0));
    if (o.reuse.restore_point != sizes_.depth) {
      return Internal("[bench] restored " + std::to_string(o.reuse.restore_point) +
                      " tokens instead of " + std::to_string(sizes_.depth) +
                      "; is the prompt cache too small for this depth?");
    }
    return static_cast<double>(sizes_.prefill) / (o.end.prefill_ms / 1e3);
  });
}

Result<double> BenchRuns::Decode(int batch) {
  return MedianOf(sizes_.repeat, [&](int i) -> Result<double> {
    std::vector<std::vector<Token>> prompts;
    for (int b = 0; b < batch; ++b) {
      ASSIGN_OR_RETURN(auto prompt, Behind(kPromptTail, 1000 * (i + 1) + b));
      prompts.push_back(std::move(prompt));
    }
    std::vector<std::shared_ptr<TokenStream>> streams;
    for (auto& prompt : prompts) {
      ASSIGN_OR_RETURN(auto stream, engine_.Submit(MakeRequest(std::move(prompt), sizes_.decode + 1,
                                                               sizes_.depth > 0)));
      streams.push_back(std::move(stream));
    }
    double longest_ms = 0;
    for (auto& stream : streams) {
      ASSIGN_OR_RETURN(const Outcome o, Wait(*stream));
      longest_ms = std::max(longest_ms, o.end.decode_ms);
    }
    return static_cast<double>(sizes_.decode * batch) / (longest_ms / 1e3);
  });
}

Result<BenchRuns::Branch> BenchRuns::MeasureBranch(int64_t tokens, double share) {
  std::vector<Token> prompt = Prompt(tokens, 77);
  ASSIGN_OR_RETURN(const Outcome cold, RunOne(prompt, 0, true));
  const auto at = static_cast<size_t>(share * static_cast<double>(tokens));
  prompt[at] = (prompt[at] + 1) % model_->info().vocab_size;
  ASSIGN_OR_RETURN(const Outcome branch, RunOne(std::move(prompt), 0, true));
  return Branch{cold.end.prefill_ms / 1e3, branch.end.prefill_ms / 1e3, branch.reuse.restore_point,
                branch.reuse.replayed_tokens()};
}

std::vector<Token> BenchRuns::Prompt(int64_t count, int seed) const {
  return RandomTokens(count, model_->info().vocab_size, seed + 1);
}

Result<std::vector<Token>> BenchRuns::CachedContext() {
  std::vector<Token> context = Prompt(sizes_.depth, 4711);
  if (!context.empty()) {  // computed once; afterwards its end checkpoint answers at once
    ASSIGN_OR_RETURN(const Outcome o, RunOne(context, 0, true));
    (void)o;
  }
  return context;
}

Result<std::vector<Token>> BenchRuns::Behind(int64_t count, int seed) {
  ASSIGN_OR_RETURN(std::vector<Token> prompt, CachedContext());
  const std::vector<Token> tail = Prompt(count, seed);
  prompt.insert(prompt.end(), tail.begin(), tail.end());
  return prompt;
}

Result<BenchRuns::Outcome> BenchRuns::RunOne(std::vector<Token> prompt, int64_t max_tokens,
                                             bool cache) {
  ASSIGN_OR_RETURN(auto stream, engine_.Submit(MakeRequest(std::move(prompt), max_tokens, cache)));
  return Wait(*stream);
}

Result<BenchRuns::Outcome> BenchRuns::Wait(TokenStream& stream) {
  Outcome outcome;
  while (true) {
    auto event = stream.Next(std::chrono::steady_clock::now() + std::chrono::minutes(60));
    if (!event) return Internal("[bench] no event from the engine in an hour");
    if (const auto* a = std::get_if<AdmittedEvent>(&*event)) outcome.reuse = a->reuse;
    if (const auto* e = std::get_if<EndEvent>(&*event)) {
      if (!e->error.ok()) return e->error;
      outcome.end = *e;
      return outcome;
    }
  }
}

}  // namespace cairn
