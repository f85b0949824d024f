#include "sim/simulation.h"

#include <algorithm>
#include <new>
#include <random>
#include <utility>

namespace cairn {
namespace {

constexpr int kContext = 600;
constexpr int kStepsMax = 200000;

class Simulation {
 public:
  Simulation(uint64_t seed, SimPlant plant, ArmHeap arm_heap, SimCoverage& coverage)
      : random_(seed),
        coverage_(coverage),
        arm_heap_(arm_heap),
        driver_(RandomModel(), RandomOptions(plant)) {}

  std::string Run() {
    if (Chance(3)) LimitPools();
    heap_fails_ = arm_heap_ != nullptr && Chance(6);
    const int requests = Int(3, 22);
    int submitted = 0;
    for (int step = 0; step < kStepsMax && problem_.empty(); ++step) {
      if (submitted < requests && Chance(4)) submitted += Submit();
      Disturb();
      Step();
      Collect();
      if (submitted >= requests && running_.empty()) break;
    }
    Want(running_.empty(), "requests without an end");
    for (auto& stream : closing_) stream->Cancel();
    for (int i = 0; i < 3; ++i) Step();
    if (problem_.empty()) CheckIdle();
    return problem_;
  }

 private:
  struct Running {
    Request request;
    std::shared_ptr<TokenStream> stream;
    Outcome outcome;
    bool cut = false;  // cancelled or ended by us
    bool fits = true;  // with all that the budget leaves beside pins
  };

  struct Transcript {  // prompt and answer
    std::vector<Token> tokens;
    int prompt_size;
  };

  void Want(bool holds, const std::string& what) {
    if (!holds && problem_.empty()) problem_ = what;
  }
  int Int(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  bool Chance(int one_in) { return Int(1, one_in) == 1; }

  FakeModelOptions RandomModel() {
    FakeModelOptions m;
    m.hybrid = !Chance(3);
    m.context_length = kContext;
    m.logit_period = Chance(3) ? 5 : 0;
    return m;
  }

  EngineOptions RandomOptions(SimPlant plant) {
    EngineOptions o;
    const int strides[] = {5, 16, 32, 64, 100, 1000};
    o.cache.stride = strides[Int(0, 5)];
    o.cache.bytes_max = Chance(8) ? 0 : static_cast<uint64_t>(Int(1, 100)) << Int(9, 13);
    if (Chance(4)) o.cache.paths_max = Int(1, 5);
    const CachePolicy policies[] = {CachePolicy::kValue, CachePolicy::kLru, CachePolicy::kLruType};
    o.cache.policy = policies[Int(0, 2)];
    o.decode_concurrency = Int(1, 6);
    o.prompt_concurrency = Int(1, 6);
    o.logit_rows_max = o.decode_concurrency + Int(0, 4);
    o.step_rows_max = Int(1, 90);
    o.closing_ms_max = Chance(2) ? 0 : 1e6;
    if (Chance(3)) o.live_bytes_max = static_cast<uint64_t>(Int(6, 40)) << 10;
    if (Chance(3)) o.memory_budget = static_cast<uint64_t>(Int(20, 400)) << 10;
    if (Chance(2)) o.step_target = {.factor = Chance(2) ? 1.6 : 0, .floor_ms = double(Int(1, 40))};
    for (int i = Int(0, 2); i > 0; --i) o.end_tokens.push_back(i);
    if (Chance(2)) o.turn_headers = {{20}, {21, 3}};
    o.clock = [this] { return Tick(); };
    if (Chance(2)) o.resident_bytes = [this] { return Resident(); };
    if (plant == SimPlant::kStaleBlock) o.cache.fault = CacheFault::kStaleBlock;
    o.faults.random_by_slot = plant == SimPlant::kRandomBySlot;
    return o;
  }

  // The engine's clock: each look takes some microseconds, sometimes long.
  Clock::time_point Tick() {
    clock_us_ += Chance(50) ? Int(0, 20000) : Int(1, 300);
    return Clock::time_point(std::chrono::microseconds(clock_us_));
  }

  // The process beside the ledger grows and shrinks; sometimes nobody can say how large it is.
  uint64_t Resident() {
    if (Chance(2)) grown_ = Chance(3) ? 0 : static_cast<uint64_t>(Int(1, 2000)) << 10;
    const EngineStats& s = driver_.stats();
    return Chance(5) ? 0 : s.weight_bytes + s.scratch_bytes + s.pool_bytes + grown_;
  }

  void LimitPools() {
    block_limit_ = static_cast<size_t>(Int(10, 40));
    state_limit_ = static_cast<size_t>(Int(3, 30));
    limited_ = true;
    driver_.core().SetPoolLimits(block_limit_, state_limit_);
  }

  // A cut of something that ran before plus new tokens, or a new prompt.
  std::vector<Token> RandomPrompt() {
    std::vector<Token> prompt;
    if (!transcripts_.empty() && !Chance(5)) {
      const auto& base = transcripts_[size_t(Int(0, int(transcripts_.size()) - 1))];
      const int size = static_cast<int>(base.tokens.size());
      const int cuts[] = {size, Int(0, size), size / 64 * 64, base.prompt_size};
      prompt.assign(base.tokens.begin(), base.tokens.begin() + cuts[Int(0, 3)]);
    }
    const int more = Chance(3) ? Int(0, 1) : Int(0, 180);
    for (int i = 0; i < more; ++i) prompt.push_back(Int(0, 23));
    if (prompt.empty()) prompt.push_back(Int(0, 23));
    return prompt;
  }

  Request RandomRequest(std::vector<Token> prompt) {
    if (prompt.size() > 560) prompt.resize(560);
    Request r;
    r.prompt = std::move(prompt);
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
    if (Chance(5)) r.cache_salt.assign(1, 's');
    if (Chance(4)) r.priority = Int(-2, 2);
    if (Chance(3)) r.share_key = std::string(1, static_cast<char>('a' + Int(0, 2)));
    if (Chance(10)) r.deadline_ms = Int(1, 200);
    return r;
  }

  // One request, or several at once that begin alike. The number of them.
  int Submit() {
    const int count = Chance(4) ? Int(2, 6) : 1;
    const std::vector<Token> shared = RandomPrompt();
    const std::string salt = Chance(6) ? "s" : "";
    for (int i = 0; i < count; ++i) {
      std::vector<Token> prompt = shared;
      if (count > 1)
        for (int k = Int(0, 60); k > 0; --k) prompt.push_back(Int(0, 23));
      Request r = RandomRequest(std::move(prompt));
      if (count > 1) r.cache_salt = salt;
      const EngineCore& core = driver_.core();
      const uint64_t pinned = core.PinnedBytesBeside(r);
      const auto n = static_cast<int64_t>(r.prompt.size());
      const bool fits = core.CheckFits(n, pinned).ok();
      auto stream = driver_.Submit(r);
      if (fits) r.max_tokens = std::min(r.max_tokens, core.TokensThatFit(pinned) - n);
      running_.push_back({std::move(r), std::move(stream), {}, false, fits});
      ++coverage_.requests;
    }
    return count;
  }

  void Disturb() {
    if (!running_.empty() && Chance(60)) {
      Running& victim = running_[size_t(Int(0, int(running_.size()) - 1))];
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
    const bool drops = Chance(60), pins = Chance(80);
    if (drops || pins) {
      const auto nodes = tree.List();
      if (nodes.empty()) return;
      const uint64_t id = nodes[size_t(Int(0, int(nodes.size()) - 1))].id;
      if (pins && tree.Pin(id).ok()) {
        ++coverage_.pins;
        limited_ = true;  // what was promised without it
      }
      if (drops) tree.Drop(id);
    }
  }

  // One step; now and then every allocation of a pool fails in it, or one of the heap.
  void Step() {
    EngineCore& core = driver_.core();
    const bool pools_fail = Chance(50);
    if (pools_fail) core.SetPoolLimits(0, 0);
    limited_ |= pools_fail;
    if (heap_fails_ && Chance(30)) arm_heap_(Int(1, 60));
    bool failed = false;
    try {
      core.Step();
    } catch (const std::bad_alloc&) {
      failed = true;
    }
    if (arm_heap_ != nullptr) arm_heap_(0);
    if (failed) {
      faulted_ = true;
      ++coverage_.faults;
      core.Recover(Internal("out of memory"));
    }
    if (pools_fail) core.SetPoolLimits(block_limit_, state_limit_);
    core.CheckInvariants();
    for (const std::string& v : driver_.model().TakeViolations()) Want(false, v);
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
    const bool error = o.end->reason == FinishReason::kError;
    if (!r.fits) {
      Want(error && o.end->error.code() == StatusCode::kInvalidArgument && o.tokens.empty(),
           "a prompt that cannot fit was not refused");
      ++coverage_.misfits;
      return;
    }
    if (error) CountError(r);
    const std::string difference =
        Difference(o, ExpectedOutcome(driver_.model(), r.request, driver_.options().end_tokens),
                   error || r.cut);
    Want(difference.empty(), difference);
    ++(r.cut ? coverage_.cut : coverage_.completed);
    if (!o.reuse) return;
    CheckReuse(r);
    std::vector<Token> all = r.request.prompt;
    all.insert(all.end(), o.tokens.begin(), o.tokens.end());
    transcripts_.push_back({all, static_cast<int>(r.request.prompt.size())});
  }

  void CountError(const Running& r) {
    switch (r.outcome.end->error.code()) {
      case StatusCode::kResourceExhausted:
        Want(limited_, "refused without a limit");
        ++coverage_.refused;
        break;
      case StatusCode::kDeadlineExceeded:
        Want(r.request.deadline_ms > 0, "too late without a deadline");
        ++coverage_.too_late;
        break;
      default:
        Want(faulted_, "failed without a fault: " + r.outcome.end->error.ToString());
        ++coverage_.failed;
    }
  }

  // Never more than what is really shared with something that could have been cached.
  void CheckReuse(const Running& r) {
    const ReuseReport& reuse = *r.outcome.reuse;
    const int64_t n = static_cast<int64_t>(r.request.prompt.size());
    Want(reuse.prompt_tokens == n && reuse.restore_point >= 0 &&
             reuse.restore_point <= reuse.matched && reuse.matched <= n,
         "an impossible reuse report");
    Want(r.request.cache_prompt || reuse.miss_reason == MissReason::kDisabledByRequest,
         "a request that must not read the cache has another reason");
    coverage_.full_hits += reuse.restore_point == n;
    coverage_.partial_hits += reuse.restore_point > 0 && reuse.restore_point < n;
    ++coverage_.reasons[reuse.miss_reason ? static_cast<int>(*reuse.miss_reason) : -1];
  }

  void CheckIdle() {
    const EngineStats& s = driver_.stats();
    Want(s.slots_busy == 0 && s.queue_length == 0 && s.in_engine == 0, "gauges of an idle engine");
    Want(s.live_bytes == 0, "live bytes of an idle engine");
    coverage_.evictions += static_cast<int64_t>(s.evictions.load());
    coverage_.preemptions += static_cast<int64_t>(s.preemptions.load());
    coverage_.shared_waits += static_cast<int64_t>(s.shared_waits.load());
    coverage_.mid_block += driver_.model().mid_block_restores();
    coverage_.taps_inside += driver_.model().taps_inside();
    coverage_.mixed += driver_.model().mixed_steps();
    driver_.core().tree().Clear();
    driver_.core().CheckInvariants();
    Want(driver_.core().block_pool().held() == 0, "blocks of an empty cache");
  }

  std::mt19937_64 random_;
  SimCoverage& coverage_;
  const ArmHeap arm_heap_;
  int64_t clock_us_ = 1;
  uint64_t grown_ = 0;
  // Pools that fail whatever the budget says: a request may be refused that would fit.
  bool limited_ = false;
  bool faulted_ = false, heap_fails_ = false;
  std::optional<size_t> block_limit_, state_limit_;
  std::string problem_;
  CoreDriver driver_;
  std::vector<Running> running_;
  std::vector<std::shared_ptr<TokenStream>> closing_;
  std::vector<Transcript> transcripts_;
};

}  // namespace

std::string Simulate(uint64_t seed, SimPlant plant, ArmHeap arm_heap, SimCoverage& coverage) {
  return Simulation(seed, plant, arm_heap, coverage).Run();
}

}  // namespace cairn
