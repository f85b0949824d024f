#include "support/engine_harness.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace cairn {
namespace {

bool SameLogprob(const TokenLogprob& a, const TokenLogprob& b) {
  return a.token == b.token && std::memcmp(&a.logprob, &b.logprob, sizeof a.logprob) == 0;
}

bool SameTop(const std::vector<TokenLogprob>& a, const std::vector<TokenLogprob>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), SameLogprob);
}

bool IsEnd(const Request& r, Token t, const std::vector<Token>& end_tokens) {
  auto has = [t](const std::vector<Token>& v) {
    return std::find(v.begin(), v.end(), t) != v.end();
  };
  return has(r.stop_token_ids) || (!r.ignore_eos && has(end_tokens));
}

}  // namespace

void Outcome::Add(StreamEvent event) {
  if (end) errors.push_back("an event after the end");
  if (auto* e = std::get_if<AdmittedEvent>(&event)) {
    if (reuse) errors.push_back("admitted twice");
    reuse = e->reuse;
    return;
  }
  if (auto* e = std::get_if<EndEvent>(&event)) {
    end = *e;
    return;
  }
  if (!reuse) errors.push_back("an event before AdmittedEvent");
  if (auto* e = std::get_if<ProgressEvent>(&event)) {
    if (!token_events.empty()) errors.push_back("progress after a token");
    if (!progress.empty() && progress.back().processed >= e->processed)
      errors.push_back("progress does not grow");
    progress.push_back(*e);
  } else if (auto* p = std::get_if<PromptLogprobsEvent>(&event)) {
    if (!token_events.empty()) errors.push_back("prompt logprobs after a token");
    prompt_logprobs.push_back(*p);
  } else if (auto* t = std::get_if<TokenEvent>(&event)) {
    token_events.push_back(*t);
    tokens.push_back(t->token);
  }
}

void Outcome::AddAll(TokenStream& stream) {
  for (StreamEvent& event : stream.Drain()) Add(std::move(event));
}

Outcome Collect(TokenStream& stream) {
  Outcome outcome;
  const auto deadline = Clock::now() + std::chrono::seconds(20);
  while (!outcome.end) {
    auto event = stream.Next(deadline);
    if (!event) {
      outcome.errors.push_back("no end within 20 s");
      break;
    }
    outcome.Add(std::move(*event));
  }
  return outcome;
}

Outcome ExpectedOutcome(const FakeModel& model, const Request& r,
                        const std::vector<Token>& end_tokens) {
  Outcome o;
  const int vocab = model.info().vocab_size;
  SamplerScratch scratch(vocab);
  std::vector<Token> tokens = r.prompt;
  const int64_t n = static_cast<int64_t>(r.prompt.size());
  if (r.prompt_logprobs) {
    for (int64_t p = 1; p < n; ++p) {
      PromptLogprobsEvent e;
      e.chosen = Logprobs(model.LogitsOf(std::span(tokens).first(p)), tokens[p],
                          r.logprobs.value_or(0), scratch, e.top);
      o.prompt_logprobs.push_back(e);
    }
  }
  const int64_t max_tokens = std::min(r.max_tokens, model.info().context_length - n);
  o.end = EndEvent{.reason = FinishReason::kLength, .error = {}, .stop_token = {}};
  for (int64_t g = 0; g < max_tokens; ++g) {
    std::vector<Token> masked;
    if (r.ignore_eos) masked = end_tokens;
    if (g < r.min_tokens) {
      masked = end_tokens;
      masked.insert(masked.end(), r.stop_token_ids.begin(), r.stop_token_ids.end());
    }
    const std::vector<float> logits = model.LogitsOf(tokens);
    const Token t = Sample({.logits = logits,
                            .tokens = tokens,
                            .prompt_size = n,
                            .params = &r.sampling,
                            .masked = masked,
                            .end_tokens = end_tokens},
                           scratch);
    if (IsEnd(r, t, end_tokens)) {
      o.end->reason = FinishReason::kStop;
      o.end->stop_token = t;
      break;
    }
    TokenEvent e{t, std::nullopt, {}};
    if (r.logprobs) e.logprob = Logprobs(logits, t, *r.logprobs, scratch, e.top);
    o.token_events.push_back(e);
    o.tokens.push_back(t);
    tokens.push_back(t);
  }
  o.end->generated = static_cast<int64_t>(o.tokens.size());
  return o;
}

std::string Difference(const Outcome& got, const Outcome& want, bool prefix) {
  if (!got.errors.empty()) return got.errors[0];
  if (!got.end) return "no end";
  if (!prefix) {
    if (got.end->reason != want.end->reason)
      return "finish reason " + std::to_string(static_cast<int>(got.end->reason)) + ", wanted " +
             std::to_string(static_cast<int>(want.end->reason)) + " " + got.end->error.ToString();
    if (got.end->stop_token != want.end->stop_token) return "stop token";
    if (got.tokens.size() != want.tokens.size())
      return std::to_string(got.tokens.size()) + " tokens, wanted " +
             std::to_string(want.tokens.size());
    if (got.prompt_logprobs.size() != want.prompt_logprobs.size())
      return std::to_string(got.prompt_logprobs.size()) + " prompt logprobs, wanted " +
             std::to_string(want.prompt_logprobs.size());
  }
  if (got.end->generated != static_cast<int64_t>(got.tokens.size())) return "EndEvent.generated";
  if (got.tokens.size() > want.tokens.size()) return "too many tokens";
  if (got.prompt_logprobs.size() > want.prompt_logprobs.size()) return "too many prompt logprobs";
  for (size_t i = 0; i < got.tokens.size(); ++i) {
    const TokenEvent &g = got.token_events[i], &w = want.token_events[i];
    if (g.token != w.token) return "token " + std::to_string(i);
    if (g.logprob.has_value() != w.logprob.has_value()) return "logprob there or not";
    if (g.logprob && !SameLogprob(*g.logprob, *w.logprob)) return "logprob " + std::to_string(i);
    if (!SameTop(g.top, w.top)) return "top logprobs " + std::to_string(i);
  }
  for (size_t i = 0; i < got.prompt_logprobs.size(); ++i) {
    const PromptLogprobsEvent &g = got.prompt_logprobs[i], &w = want.prompt_logprobs[i];
    if (!SameLogprob(g.chosen, w.chosen) || !SameTop(g.top, w.top))
      return "prompt logprob " + std::to_string(i);
  }
  return "";
}

std::vector<Token> RandomTokens(uint64_t seed, int64_t count, int vocab_size) {
  std::vector<Token> tokens;
  for (int64_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<Token>(CounterUniform(seed, i, 99) * vocab_size));
  return tokens;
}

std::vector<Token> Join(std::vector<Token> a, const std::vector<Token>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Request MakeRequest(std::vector<Token> prompt, int64_t max_tokens) {
  Request r;
  r.prompt = std::move(prompt);
  r.max_tokens = max_tokens;
  r.raw = true;
  r.tail_begin = static_cast<int64_t>(r.prompt.size());
  return r;
}

EngineOptions CoreDriver::SmallOptions() {
  EngineOptions o;
  o.cache.stride = 32;
  o.cache.bytes_max = 16 << 20;
  o.step_rows_max = 48;
  o.decode_concurrency = 4;
  o.prompt_concurrency = 4;
  o.logit_rows_max = 8;
  return o;
}

CoreDriver::CoreDriver(FakeModelOptions model, EngineOptions options)
    : model_(std::move(model)), options_(std::move(options)) {
  core_ = std::make_unique<EngineCore>(model_, options_, observer_, stats_);
}

CoreDriver::~CoreDriver() {
  for (const std::string& v : model_.violations()) ADD_FAILURE() << v;
}

std::shared_ptr<TokenStream> CoreDriver::Submit(Request request) {
  auto stream = std::make_shared<TokenStream>();
  const int64_t rest = model_.info().context_length - static_cast<int64_t>(request.prompt.size());
  const int64_t max_tokens = std::min(request.max_tokens, rest);
  ++stats_.queue_length;
  auto sequence = std::make_unique<Sequence>(next_id_++, std::move(request), stream, max_tokens);
  if (options_.clock) sequence->submitted = options_.clock();
  core_->Enqueue(std::move(sequence));
  more_ = true;
  return stream;
}

void CoreDriver::Step() {
  more_ = core_->Step();
  ++steps_;
  core_->CheckInvariants();
}

void CoreDriver::RunUntilIdle() {
  for (int i = 0; i < 100000; ++i) {
    Step();
    if (!more_) return;
  }
  ADD_FAILURE() << "not idle after 100,000 steps";
}

Outcome CoreDriver::Run(Request request) {
  const Outcome want = ExpectedOutcome(model_, request, options_.end_tokens);
  auto stream = Submit(std::move(request));
  RunUntilIdle();
  Outcome got;
  got.AddAll(*stream);
  EXPECT_EQ(Difference(got, want), "");
  return got;
}

Outcome CoreDriver::Run(std::vector<Token> prompt, int64_t max_tokens) {
  Request r;
  r.prompt = std::move(prompt);
  r.max_tokens = max_tokens;
  r.raw = true;
  r.tail_begin = static_cast<int64_t>(r.prompt.size());
  return Run(std::move(r));
}

std::vector<int64_t> CoreDriver::Checkpoints(const std::vector<Token>& tokens,
                                             const std::string& salt) {
  std::vector<int64_t> positions;
  for (const Mark& m : core_->tree().Checkpoints(tokens, salt)) positions.push_back(m.position);
  return positions;
}

}  // namespace cairn
