#include "engine/self_test.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <mutex>
#include <optional>
#include <random>

#include "cache/prefix_tree.h"
#include "engine/plain_run.h"

namespace cairn {
namespace {

constexpr int kRowsMax = 512;
constexpr int kStride = 128;  // small, so that grid marks fall into the prompts
constexpr auto kPatience = std::chrono::minutes(30);
constexpr uint64_t kCacheBytes = uint64_t{8} << 30;

// What the plain run gives for one prompt.
struct Yardstick {
  std::vector<Token> prompt;
  std::vector<Token> generated;         // greedy
  std::vector<uint64_t> logit_digests;  // of the row that gave each of them
  uint64_t prompt_state = 0;            // StateDigest after the prompt
};

std::vector<Token> RandomPrompt(std::mt19937_64& random, int length, int vocab_size) {
  std::vector<Token> tokens(length);
  for (Token& t : tokens) t = static_cast<Token>(random() % static_cast<uint64_t>(vocab_size));
  return tokens;
}

Token Argmax(std::span<const float> logits) {
  return static_cast<Token>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

std::string Hex(uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

class SelfTest {
 public:
  SelfTest(std::shared_ptr<const Model> model, const SelfTestOptions& options,
           const std::function<void(const SelfTestCheck&)>& report)
      : model_(std::move(model)), options_(options), report_(report), random_(options.seed) {}

  Result<bool> Run() {
    RETURN_IF_ERROR(CheckSizes());
    for (const CpuLevel level : options_.levels) {
      RETURN_IF_ERROR(MakeYardsticks(level));
      for (const int threads : options_.thread_counts) {
        name_ = std::string(CpuLevelName(level)) + ", " + std::to_string(threads) +
                (threads == 1 ? " thread: " : " threads: ");
        RETURN_IF_ERROR(TestPieces(level, threads));
        RETURN_IF_ERROR(TestEngine(level, threads));
      }
    }
    return passed_;
  }

 private:
  Status CheckSizes() const {
    const int64_t longest = options_.prompt_tokens + options_.decode_tokens + 1;
    if (model_->info().context_length <= longest) {
      return InvalidArgument("[selftest] context of " +
                             std::to_string(model_->info().context_length) +
                             " tokens, wanted more than " + std::to_string(longest));
    }
    return {};
  }

  Result<Yardstick> RunPlain(std::vector<Token> prompt, int decode_tokens,
                             const KernelContext& ctx) const {
    Yardstick y;
    y.prompt = std::move(prompt);
    ASSIGN_OR_RETURN(auto run, PlainRun::Create(*model_, ctx, kRowsMax));
    RETURN_IF_ERROR(run->FeedAll(y.prompt));
    y.prompt_state = run->state_digest();
    for (int i = 0; i < decode_tokens; ++i) {
      y.logit_digests.push_back(LogitsDigest(run->logits()));
      y.generated.push_back(Argmax(run->logits()));
      RETURN_IF_ERROR(run->Feed({&y.generated.back(), 1}));
    }
    return y;
  }

  // The prompts of this level and, of each, a version edited in the middle. Always run at the best
  // level, with one thread: every other level and thread count is compared with that.
  Status MakeYardsticks(CpuLevel level) {
    ThreadPool pool(1);
    const KernelContext ctx{options_.levels.back(), &pool};
    const bool slow = level == CpuLevel::kScalar;
    const int longest = slow ? options_.scalar_prompt_tokens : options_.prompt_tokens;
    const int decode = slow ? options_.scalar_decode_tokens : options_.decode_tokens;
    random_.seed(options_.seed);
    originals_.clear();
    edited_.clear();
    for (int i = 0; i < options_.batch; ++i) {
      const int length = std::max(1, longest - i * longest / (options_.batch + 1));
      std::vector<Token> prompt = RandomPrompt(random_, length, model_->info().vocab_size);
      std::vector<Token> edited = prompt;
      Token& changed = edited[static_cast<size_t>(length) * 7 / 8];
      changed = (changed + 1) % model_->info().vocab_size;
      ASSIGN_OR_RETURN(Yardstick y, RunPlain(std::move(prompt), decode, ctx));
      originals_.push_back(std::move(y));
      ASSIGN_OR_RETURN(Yardstick e, RunPlain(std::move(edited), decode, ctx));
      edited_.push_back(std::move(e));
    }
    return {};
  }

  // The first prompt in random pieces, straight through the model.
  Status TestPieces(CpuLevel level, int threads) {
    ThreadPool pool(threads);
    const Yardstick& y = originals_.front();
    ASSIGN_OR_RETURN(auto run, PlainRun::Create(*model_, {level, &pool}, kRowsMax));
    const std::span<const Token> prompt = y.prompt;
    int pieces = 0;
    for (size_t at = 0; at < prompt.size(); ++pieces) {
      const size_t rows = std::min<size_t>(1 + random_() % 150, prompt.size() - at);
      RETURN_IF_ERROR(run->Feed(prompt.subspan(at, rows)));
      at += rows;
    }
    const bool same = LogitsDigest(run->logits()) == y.logit_digests.front() &&
                      run->state_digest() == y.prompt_state;
    Report("random pieces", same,
           std::to_string(pieces) + " pieces of " + std::to_string(prompt.size()) + " tokens",
           Hex(run->state_digest()));
    return {};
  }

  Status TestEngine(CpuLevel level, int threads) {
    EngineOptions options;
    options.threads = threads;
    options.cpu_level = level;
    options.cache.stride = kStride;
    options.cache.bytes_max = kCacheBytes;
    options.decode_concurrency = options_.batch;
    options.prompt_concurrency = options_.batch;
    options.step_rows_max = 96;  // several steps a prompt, pieces mixed with decoding rows
    EngineObserver observer;
    observer.logits = [this](const std::string& id, int64_t position,
                             std::span<const float> logits) {
      seen_[id][position] = LogitsDigest(logits);
    };
    ASSIGN_OR_RETURN(auto engine, Engine::Create(model_, options, observer));
    RETURN_IF_ERROR(RunTogether(*engine, originals_, "cold and batched", false));
    RETURN_IF_ERROR(RunTogether(*engine, originals_, "warm and batched", true));
    RETURN_IF_ERROR(RunTogether(*engine, edited_, "edited in the middle", false));
    RETURN_IF_ERROR(CompareStates(*engine));
    return {};
  }

  // All prompts at once through the engine; tokens and logits must be the yardstick's.
  Status RunTogether(Engine& engine, const std::vector<Yardstick>& yardsticks,
                     const std::string& what, bool whole_prompt_cached) {
    std::vector<std::shared_ptr<TokenStream>> streams;
    for (size_t i = 0; i < yardsticks.size(); ++i) {
      Request request;
      request.prompt = yardsticks[i].prompt;
      request.tail_begin = static_cast<int64_t>(request.prompt.size());
      request.raw = true;
      request.ignore_eos = true;
      request.max_tokens = static_cast<int64_t>(yardsticks[i].generated.size());
      request.id = what + std::to_string(i);
      ASSIGN_OR_RETURN(auto stream, engine.Submit(std::move(request)));
      streams.push_back(std::move(stream));
    }
    int64_t restored = 0, replayed = 0;
    std::string difference;
    for (size_t i = 0; i < streams.size(); ++i) {
      ASSIGN_OR_RETURN(const Outcome outcome, Collect(*streams[i]));
      restored += outcome.reuse.restore_point;
      replayed += outcome.reuse.replayed_tokens();
      if (outcome.tokens != yardsticks[i].generated)
        difference = "other tokens for prompt " + std::to_string(i);
    }
    // Every request has ended, so the engine thread writes no more digests of theirs: a command
    // orders us behind it.
    RETURN_IF_ERROR(engine.Run([](EngineView&) {}));
    for (size_t i = 0; i < yardsticks.size(); ++i) {
      const auto& digests = seen_[what + std::to_string(i)];
      for (size_t k = 0; k < yardsticks[i].logit_digests.size(); ++k) {
        const auto it = digests.find(static_cast<int64_t>(yardsticks[i].prompt.size() + k));
        if (it == digests.end() || it->second != yardsticks[i].logit_digests[k]) {
          difference = "other logits for prompt " + std::to_string(i) + ", generated token " +
                       std::to_string(k);
        }
      }
    }
    if (whole_prompt_cached && replayed > 0)
      difference = std::to_string(replayed) + " tokens replayed, wanted 0";
    const std::string counts =
        std::to_string(restored) + " tokens restored, " + std::to_string(replayed) + " replayed";
    Report(what, difference.empty(), difference.empty() ? counts : difference, "");
    seen_.clear();
    return {};
  }

  struct Outcome {
    ReuseReport reuse;
    std::vector<Token> tokens;
  };
  static Result<Outcome> Collect(TokenStream& stream) {
    Outcome outcome;
    while (true) {
      const auto event = stream.Next(std::chrono::steady_clock::now() + kPatience);
      if (!event) return Internal("[selftest] the engine gave no event in half an hour");
      if (const auto* a = std::get_if<AdmittedEvent>(&*event)) outcome.reuse = a->reuse;
      if (const auto* t = std::get_if<TokenEvent>(&*event)) outcome.tokens.push_back(t->token);
      if (const auto* e = std::get_if<EndEvent>(&*event)) {
        if (!e->error.ok()) return e->error;
        return outcome;
      }
    }
  }

  // The states that the tree restores for each prompt, original and edited, against the plain
  // run's.
  Status CompareStates(Engine& engine) {
    std::string difference;
    uint64_t all = 0;
    Status status = engine.Run([&](EngineView& view) {
      BlockPool blocks(model_->layout());
      StatePool states(model_->layout());
      for (const auto* yardsticks : {&originals_, &edited_}) {
        for (const Yardstick& y : *yardsticks) {
          const Match match = view.tree.Find(y.prompt, "");
          if (match.restore_point != static_cast<int64_t>(y.prompt.size())) {
            difference = "no state at the end of a prompt";
            continue;
          }
          const Lease lease = view.tree.Acquire(match, "");
          auto state = view.tree.Restore(lease, blocks, states);
          if (!state.ok()) {
            difference = state.status().message();
            continue;
          }
          const uint64_t digest =
              StateDigest(*model_, state->state(), state->block_pointers(), state->length());
          all = all * 31 + digest;
          if (digest != y.prompt_state) difference = "a restored state differs";
        }
      }
    });
    RETURN_IF_ERROR(status);
    Report("restored states", difference.empty(),
           difference.empty() ? std::to_string(2 * originals_.size()) + " states" : difference,
           Hex(all));
    return {};
  }

  void Report(const std::string& what, bool passed, std::string detail, std::string digest) {
    passed_ = passed_ && passed;
    report_({name_ + what, passed, std::move(detail), std::move(digest)});
  }

  std::shared_ptr<const Model> model_;
  const SelfTestOptions& options_;
  const std::function<void(const SelfTestCheck&)>& report_;
  std::mt19937_64 random_;
  std::vector<Yardstick> originals_, edited_;
  std::map<std::string, std::map<int64_t, uint64_t>>
      seen_;  // by request, by position of the token: written by the engine thread
  std::string name_;
  bool passed_ = true;
};

}  // namespace

Result<bool> RunSelfTest(std::shared_ptr<const Model> model, const SelfTestOptions& options,
                         const std::function<void(const SelfTestCheck&)>& report) {
  CHECK(!options.levels.empty() && !options.thread_counts.empty() && options.batch > 0);
  return SelfTest(std::move(model), options, report).Run();
}

}  // namespace cairn
