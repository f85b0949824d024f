// The random simulator: one engine, stepped by hand, under arrivals, cancels, stop strings, tiny
// pools, small limits and evictions at any time. After each step the invariants are checked; each
// answer must equal the plain run of its request alone. A failure prints the seed; run one seed
// with CAIRN_SIM_SEED=n, more with CAIRN_SIM_SEEDS=n.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>

#include "support/engine_harness.h"

namespace cairn {
namespace {

// What happened over all seeds: the simulator is worth something only if all of it did.
struct Coverage {
  int64_t requests = 0, completed = 0, cancelled = 0, refused = 0, full_hits = 0, partial_hits = 0;
  int64_t evictions = 0, preemptions = 0, mid_block = 0, taps_inside = 0, mixed = 0;
  std::map<int, int64_t> reasons;
};

class Simulation {
 public:
  Simulation(uint64_t seed, Coverage& coverage)
      : random_(seed), coverage_(coverage), driver_(RandomModel(), RandomOptions()) {}

  void Run() {
    if (Chance(3)) LimitPools();
    const int requests = Int(3, 22);
    int submitted = 0;
    for (int step = 0; step < 200000; ++step) {
      if (submitted < requests && Chance(4)) {
        Submit();
        ++submitted;
      }
      Disturb();
      driver_.Step();
      Collect();
      if (submitted == requests && running_.empty()) break;
    }
    EXPECT_TRUE(running_.empty()) << "requests without an end";
    for (auto& stream : closing_) stream->Cancel();
    driver_.RunUntilIdle();
    CheckIdle();
  }

 private:
  struct Running {
    Request request;
    std::shared_ptr<TokenStream> stream;
    Outcome outcome;
    bool cut = false;  // cancelled or ended by us
  };

  struct Transcript {  // prompt and answer
    std::vector<Token> tokens;
    int prompt_size;
  };

  int Int(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  bool Chance(int one_in) { return Int(1, one_in) == 1; }

  FakeModelOptions RandomModel() {
    FakeModelOptions m;
    m.hybrid = !Chance(3);
    m.context_length = 600;
    m.logit_period = Chance(3) ? 5 : 0;
    return m;
  }

  EngineOptions RandomOptions() {
    EngineOptions o;
    const int strides[] = {5, 16, 32, 64, 100, 1000};
    o.cache.stride = strides[Int(0, 5)];
    o.cache.bytes_max = Chance(8) ? 0 : static_cast<uint64_t>(Int(1, 100)) << Int(9, 13);
    if (Chance(4)) o.cache.paths_max = Int(1, 5);
    o.cache.policy = Chance(2) ? CachePolicy::kLru : CachePolicy::kLruType;
    o.decode_concurrency = Int(1, 6);
    o.prompt_concurrency = Int(1, 6);
    o.logit_rows_max = o.decode_concurrency + Int(0, 4);
    o.step_rows_max = Int(1, 90);
    o.closing_ms_max = Chance(2) ? 0 : 1e6;
    if (Chance(3)) o.live_bytes_max = static_cast<uint64_t>(Int(6, 40)) << 10;
    for (int i = Int(0, 2); i > 0; --i) o.end_tokens.push_back(i);
    if (Chance(2)) o.turn_headers = {{20}, {21, 3}};
    limited_ = o.live_bytes_max != UINT64_MAX;
    return o;
  }

  void LimitPools() {
    driver_.core().SetPoolLimits(Int(10, 40), Int(3, 30));
    limited_ = true;
  }

  // A cut of something that ran before plus new tokens, or a new prompt.
  std::vector<Token> RandomPrompt() {
    std::vector<Token> prompt;
    if (!transcripts_.empty() && !Chance(5)) {
      const auto& base = transcripts_[Int(0, static_cast<int>(transcripts_.size()) - 1)];
      const int size = static_cast<int>(base.tokens.size());
      const int cuts[] = {size, Int(0, size), size / 64 * 64, base.prompt_size};
      prompt.assign(base.tokens.begin(), base.tokens.begin() + cuts[Int(0, 3)]);
    }
    const int more = Chance(3) ? Int(0, 1) : Int(0, 180);
    for (int i = 0; i < more; ++i) prompt.push_back(Int(0, 23));
    if (prompt.empty()) prompt.push_back(Int(0, 23));
    if (prompt.size() > 560) prompt.resize(560);
    return prompt;
  }

  Request RandomRequest() {
    Request r;
    r.prompt = RandomPrompt();
    const int64_t n = static_cast<int64_t>(r.prompt.size());
    r.raw = Chance(2);
    r.system_end = r.raw ? 0 : Int(0, static_cast<int>(n));
    r.tail_begin = r.raw ? n : std::max<int64_t>(r.system_end, n - 3);
    r.max_tokens = Chance(10) ? 0 : Int(1, Chance(6) ? 400 : 40);
    r.min_tokens = Chance(5) ? Int(1, 10) : 0;
    r.ignore_eos = Chance(4);
    if (Chance(4)) r.stop_token_ids = {Int(0, 23)};
    r.has_stop_strings = Chance(4);
    if (Chance(2)) r.sampling.temperature = 0.9f;
    r.sampling.seed = static_cast<uint64_t>(Int(0, 3));
    if (Chance(4)) r.sampling.top_p = 0.8f;
    if (Chance(4)) r.sampling.repetition_penalty = 1.2f;
    if (Chance(4)) r.sampling.frequency_penalty = 0.2f;
    if (Chance(3)) r.logprobs = Int(0, 3);
    r.prompt_logprobs = Chance(8);
    r.cache_prompt = !Chance(8);
    if (Chance(5)) r.cache_salt = "s";
    return r;
  }

  void Submit() {
    Request r = RandomRequest();
    auto stream = driver_.Submit(r);
    running_.push_back({std::move(r), std::move(stream), {}, false});
    ++coverage_.requests;
  }

  void Disturb() {
    if (!running_.empty() && Chance(60)) {
      Running& victim = running_[Int(0, static_cast<int>(running_.size()) - 1)];
      victim.cut = true;
      if (victim.request.has_stop_strings && Chance(2))
        victim.stream->End(Int(0, static_cast<int>(victim.outcome.tokens.size())));
      else
        victim.stream->Cancel();
    }
    if (!closing_.empty() && Chance(3)) {
      closing_.back()->End(Int(0, 40));
      closing_.pop_back();
    }
    PrefixTree& tree = driver_.core().tree();
    if (Chance(40)) tree.EvictOne();
    if (Chance(150)) tree.Clear();
    if (Chance(60)) {
      const auto nodes = tree.List();
      if (!nodes.empty()) tree.Drop(nodes[Int(0, static_cast<int>(nodes.size()) - 1)].id);
    }
  }

  void Collect() {
    for (size_t i = 0; i < running_.size();) {
      Running& r = running_[i];
      r.outcome.AddAll(*r.stream);
      if (!r.outcome.end) {
        ++i;
        continue;
      }
      Check(r);
      if (r.request.has_stop_strings) closing_.push_back(r.stream);
      running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  void Check(const Running& r) {
    const Outcome& o = r.outcome;
    const bool refused = o.end->reason == FinishReason::kError;
    if (refused) {
      EXPECT_TRUE(limited_);
      EXPECT_EQ(o.end->error.code(), StatusCode::kResourceExhausted);
      ++coverage_.refused;
    }
    EXPECT_EQ(
        Difference(o, ExpectedOutcome(driver_.model(), r.request, driver_.options().end_tokens),
                   refused || r.cut),
        "");
    ++(r.cut ? coverage_.cancelled : coverage_.completed);
    if (!o.reuse) return;
    CheckReuse(r);
    std::vector<Token> all = r.request.prompt;
    all.insert(all.end(), o.tokens.begin(), o.tokens.end());
    transcripts_.push_back({all, static_cast<int>(r.request.prompt.size())});
  }

  // Never more than what is really shared with something that could have been cached.
  void CheckReuse(const Running& r) {
    const ReuseReport& reuse = *r.outcome.reuse;
    const int64_t n = static_cast<int64_t>(r.request.prompt.size());
    EXPECT_EQ(reuse.prompt_tokens, n);
    EXPECT_GE(reuse.restore_point, 0);
    EXPECT_LE(reuse.restore_point, reuse.matched);
    EXPECT_LE(reuse.matched, n);
    if (!r.request.cache_prompt) {
      EXPECT_EQ(reuse.miss_reason, MissReason::kDisabledByRequest);
    }
    if (reuse.restore_point == n) ++coverage_.full_hits;
    if (reuse.restore_point > 0 && reuse.restore_point < n) ++coverage_.partial_hits;
    ++coverage_.reasons[reuse.miss_reason ? static_cast<int>(*reuse.miss_reason) : -1];
  }

  void CheckIdle() {
    const EngineStats& s = driver_.stats();
    EXPECT_EQ(s.slots_busy, 0);
    EXPECT_EQ(s.queue_length, 0);
    EXPECT_EQ(s.live_bytes, 0u);
    coverage_.evictions += static_cast<int64_t>(s.evictions.load());
    coverage_.preemptions += static_cast<int64_t>(s.preemptions.load());
    coverage_.mid_block += driver_.model().mid_block_restores();
    coverage_.taps_inside += driver_.model().taps_inside();
    coverage_.mixed += driver_.model().mixed_steps();
    driver_.core().tree().Clear();
    driver_.core().CheckInvariants();
    EXPECT_EQ(driver_.core().block_pool().held(), 0u);
  }

  std::mt19937_64 random_;
  Coverage& coverage_;
  bool limited_ = false;
  CoreDriver driver_;
  std::vector<Running> running_;
  std::vector<std::shared_ptr<TokenStream>> closing_;
  std::vector<Transcript> transcripts_;
};

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

TEST(EngineSim, EveryAnswerEqualsThePlainRun) {
  const uint64_t one = FromEnvironment("CAIRN_SIM_SEED", 0);
  const uint64_t count = FromEnvironment("CAIRN_SIM_SEEDS", 1000);
  Coverage coverage;
  for (uint64_t seed = one ? one : 1; seed <= (one ? one : count); ++seed) {
    SCOPED_TRACE("CAIRN_SIM_SEED=" + std::to_string(seed));
    Simulation(seed, coverage).Run();
    if (HasFailure()) return;
  }
  if (one) return;
  EXPECT_GT(coverage.completed, 0);
  EXPECT_GT(coverage.cancelled, 0);
  EXPECT_GT(coverage.full_hits, 0);
  EXPECT_GT(coverage.partial_hits, 0);
  EXPECT_GT(coverage.evictions, 0);
  EXPECT_GT(coverage.preemptions, 0);
  EXPECT_GT(coverage.mid_block, 0);
  EXPECT_GT(coverage.taps_inside, 0);
  EXPECT_GT(coverage.mixed, 0);
  EXPECT_GE(coverage.reasons.size(), 8u);  // all reasons but at most one, and null
  std::printf("requests %ld, completed %ld, cut %ld, refused %ld, full hits %ld, partial %ld\n",
              long(coverage.requests), long(coverage.completed), long(coverage.cancelled),
              long(coverage.refused), long(coverage.full_hits), long(coverage.partial_hits));
  std::printf("evictions %ld, preemptions %ld, mid-block %ld, inner taps %ld, mixed steps %ld\n",
              long(coverage.evictions), long(coverage.preemptions), long(coverage.mid_block),
              long(coverage.taps_inside), long(coverage.mixed));
}

}  // namespace
}  // namespace cairn
