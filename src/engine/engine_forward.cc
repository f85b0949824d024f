// Forward and Sample: the only stages that compute. They write live states, taps, logits and each
// sequence's StepWork; nothing else.
#include <algorithm>
#include <stdexcept>

#include "engine/engine_core.h"

namespace cairn {

void EngineCore::ForwardStep() {
  if (++forward_count_ == options_.faults.throwing_step) throw std::runtime_error("planted");
  HiddenRowLogits();
  if (slices_.empty()) return;
  const size_t hidden_count = hidden_sequences_.size();
  model_.Forward(context_,
                 {.tokens = batch_tokens_,
                  .slices = slices_,
                  .logit_rows = logit_rows_,
                  .logits = logits_.get() + hidden_count * static_cast<size_t>(vocab_size_)},
                 *workspace_);
}

// A prompt that ends on a checkpoint replays nothing: the logits come from the checkpoint's hidden
// row.
void EngineCore::HiddenRowLogits() {
  if (hidden_sequences_.empty()) return;
  hidden_rows_.clear();
  const size_t offset = model_.layout().hidden_offset();
  for (size_t i = 0; i < hidden_sequences_.size(); ++i) {
    Sequence& s = *hidden_sequences_[i];
    hidden_rows_.push_back(reinterpret_cast<const float*>(s.state->state() + offset));
    s.work.logit_begin = static_cast<int>(i);
    s.work.logit_count = 1;
    s.work.samples = true;
  }
  model_.Logits(context_, hidden_rows_, logits_.get(), *workspace_);
}

void EngineCore::SampleStep() {
  for (size_t slot = 0; slot < active_.size(); ++slot) {
    Sequence& s = *active_[slot];
    StepWork& w = s.work;
    w.top.clear();
    w.prompt_logprobs.clear();
    w.logprob.reset();
    if (w.logit_count == 0) continue;
    const size_t top_count = static_cast<size_t>(s.request.logprobs.value_or(0));
    // All room is taken here: a task must not throw.
    if (s.request.logprobs) w.top.reserve(top_count);
    w.prompt_logprobs.resize(static_cast<size_t>(w.prompt_logit_count));
    for (PromptLogprobsEvent& e : w.prompt_logprobs) e.top.reserve(top_count);
    for (int i = 0; i < w.logit_count; ++i) {
      LogitTask task{&s, w.logit_begin + i, std::nullopt, static_cast<int>(slot)};
      if (i < w.prompt_logit_count) task.prompt_index = i;
      logit_tasks_.push_back(task);
    }
  }
  ObserveLogits();
  pool_.ParallelFor(static_cast<int>(logit_tasks_.size()), [this](int task, int worker) {
    RunLogitTask(logit_tasks_[static_cast<size_t>(task)],
                 sampler_scratch_[static_cast<size_t>(worker)]);
  });
}

void EngineCore::ObserveLogits() const {
  if (!observer_.logits) return;
  for (const LogitTask& task : logit_tasks_) {
    if (task.prompt_index) continue;
    observer_.logits(task.sequence->request.id, static_cast<int64_t>(task.sequence->tokens.size()),
                     LogitsOf(task));
  }
}

std::span<const float> EngineCore::LogitsOf(const LogitTask& task) const {
  const auto vocab = static_cast<size_t>(vocab_size_);
  return {logits_.get() + static_cast<size_t>(task.row) * vocab, vocab};
}

void EngineCore::RunLogitTask(const LogitTask& task, SamplerScratch& scratch) {
  Sequence& s = *task.sequence;
  const std::span<const float> logits = LogitsOf(task);
  const int top_count = s.request.logprobs.value_or(0);
  if (task.prompt_index) {
    const int i = *task.prompt_index;
    PromptLogprobsEvent& event = s.work.prompt_logprobs[static_cast<size_t>(i)];
    const Token next = s.tokens[static_cast<size_t>(s.work.prompt_logit_begin + i)];
    event.chosen = Logprobs(logits, next, top_count, scratch, event.top);
    return;
  }
  SamplingParams planted;
  const SamplingParams* params = &s.request.sampling;
  if (options_.faults.random_by_slot) {
    planted = *params;
    planted.seed = static_cast<uint64_t>(task.slot);
    params = &planted;
  }
  s.work.sampled = Sample({.logits = logits,
                           .tokens = s.tokens,
                           .prompt_size = s.prompt_size(),
                           .params = params,
                           .masked = s.masked(),
                           .end_tokens = options_.end_tokens},
                          scratch);
  if (s.request.logprobs)
    s.work.logprob = Logprobs(logits, s.work.sampled, top_count, scratch, s.work.top);
}

}  // namespace cairn
