#include "scenarios/law_case.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "engine/plain_run.h"
#include "kernels/attention.h"

namespace cairn::law {
namespace {

constexpr size_t kPromptTokensMax = 440;
constexpr int kAnswerTokensMax = 12;
constexpr int kStepsMax = 20000;
constexpr const char* kSalt = "s";

bool SameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

}  // namespace

Coverage& Coverage::operator+=(const Coverage& o) {
  const auto add = [&](auto... member) { ((this->*member += o.*member), ...); };
  add(&Coverage::cases, &Coverage::requests, &Coverage::cancelled, &Coverage::refused,
      &Coverage::full_hits, &Coverage::partial_hits, &Coverage::rows_compared,
      &Coverage::prompt_rows_compared, &Coverage::states_compared, &Coverage::restores_inside_block,
      &Coverage::restores_off_grid, &Coverage::mixed_steps, &Coverage::evictions,
      &Coverage::evicted_then_replayed, &Coverage::preemptions, &Coverage::generated_long_context);
  const auto add_batches = [&](auto... member) { ((batches.*member += o.batches.*member), ...); };
  add_batches(&BatchCounts::steps, &BatchCounts::rows, &BatchCounts::inner_taps,
              &BatchCounts::mixed_steps, &BatchCounts::two_segment, &BatchCounts::inside_block,
              &BatchCounts::batched_steps);
  return *this;
}

LawCase::LawCase(const CaseSetup& setup, uint64_t seed)
    : setup_(setup),
      seed_(seed),
      model_(setup.model),
      random_(seed * 8 + static_cast<uint64_t>(setup.level) + setup.model.info().fingerprint),
      watched_(setup.model, setup.kernel_faults, &coverage_.batches),
      options_(RandomOptions()),
      scratch_(setup.model.info().vocab_size) {
  observer_.logits = [this](const std::string& id, int64_t position,
                            std::span<const float> logits) {
    rows_.push_back({std::stoul(id), position, {logits.begin(), logits.end()}});
  };
  core_ = std::make_unique<EngineCore>(watched_, options_, observer_, stats_);
  if (limited_ && Chance(2)) LimitPools();
}

LawCase::~LawCase() = default;

EngineOptions LawCase::RandomOptions() {
  EngineOptions o;
  o.cpu_level = setup_.level;
  o.threads = Chance(3) ? Int(2, 4) : 1;
  o.faults = setup_.engine_faults;
  o.cache.fault = setup_.cache_fault;
  o.cache.stride = Chance(2) ? 16 << Int(0, 3) : Int(16, 128);
  o.cache.policy = Chance(2) ? CachePolicy::kLru : CachePolicy::kLruType;
  o.cache.bytes_max = uint64_t{64} << 20;
  const int pieces = Int(1, 8);
  o.step_rows_max = pieces == 1 ? Int(4, 16) : pieces == 8 ? 512 : Int(17, 160);
  o.decode_concurrency = Int(2, 5);
  o.prompt_concurrency = Int(1, 4);
  o.logit_rows_max = o.decode_concurrency + Int(0, 40);
  if (Chance(2)) o.turn_headers = {{1}, {2, 3}};
  LimitMemory(o);
  return o;
}

void LawCase::LimitMemory(EngineOptions& o) {
  const uint64_t block = model_.layout().block_bytes(), state = model_.layout().buffer_bytes();
  switch (Int(1, 10)) {
    case 1:
      o.cache.bytes_max = 0;
      break;
    case 2:
    case 3:
    case 4:
    case 5:
      o.cache.bytes_max =
          static_cast<uint64_t>(Int(1, 10)) * state + static_cast<uint64_t>(Int(2, 16)) * block;
      break;
    case 6:
      o.cache.paths_max = Int(1, 3);
      break;
    default:
      break;
  }
  if (!Chance(2)) return;
  limited_ = true;
  // One sequence needs at most 8 blocks, a copied one and its state.
  o.live_bytes_max =
      static_cast<uint64_t>(Int(8, 10)) * block + static_cast<uint64_t>(Int(2, 4)) * state;
}

void LawCase::LimitPools() {
  core_->SetPoolLimits(static_cast<size_t>(Int(8, 12)), static_cast<size_t>(Int(3, 8)));
}

// A cut or an edit of something that ran before plus new tokens, or a new prompt.
std::vector<Token> LawCase::RandomPrompt(std::mt19937_64& random) const {
  const auto pick = [&](size_t low, size_t high) {
    return low + random() % (std::max(low, high) - low + 1);
  };
  const auto token = [&] {
    return static_cast<Token>(random() % static_cast<uint64_t>(model_.info().vocab_size));
  };
  const auto append = [&](std::vector<Token>& tokens, size_t count) {
    for (size_t i = 0; i < count; ++i) tokens.push_back(token());
  };
  std::vector<Token> prompt;
  if (requests_.empty() || pick(1, 10) == 1) {
    append(prompt, pick(1, 5) == 1 ? pick(1, 260) : pick(258, 320));
    // The scalar level is an order of magnitude slower: two segments of keys in a third of its
    // cases.
    if (setup_.level == CpuLevel::kScalar && seed_ % 3 != 0 && prompt.size() > 110)
      prompt.resize(110);
    return prompt;
  }
  const Running& base = requests_[pick(0, requests_.size() - 1)];
  prompt = base.ended ? TokensOf(base) : base.request.prompt;
  const size_t size = prompt.size();
  switch (pick(1, 6)) {
    case 1:  // the chat goes on
      append(prompt, pick(1, 80));
      break;
    case 2: {  // a message in the middle was edited
      const size_t begin = pick(size / 4, size - 1);
      for (size_t i = begin; i < std::min(size, begin + pick(1, 20)); ++i) prompt[i] = token();
      break;
    }
    case 3:  // cut back
      prompt.resize(pick(1, 3) == 1 ? std::max<size_t>(1, size / 64 * 64) : pick(size / 3, size));
      break;
    case 4:  // another question after the same beginning
      prompt.resize(pick(size / 3, size));
      append(prompt, pick(1, 120));
      break;
    default:  // once more
      prompt = base.request.prompt;
      break;
  }
  if (prompt.size() > kPromptTokensMax) prompt.resize(kPromptTokensMax);
  return prompt;
}

Request LawCase::RandomRequest() {
  std::mt19937_64 random(seed_ * 64 + requests_.size());
  Request r;
  r.id = std::to_string(requests_.size());
  r.prompt = RandomPrompt(random);
  const int64_t n = static_cast<int64_t>(r.prompt.size());
  r.max_tokens = random() % 10 == 0 ? 0 : 1 + static_cast<int64_t>(random() % kAnswerTokensMax);
  if (random() % 2 == 0) {
    r.sampling.temperature = 0.9f;
    r.sampling.seed = random() % 5;
    if (random() % 3 == 0) r.sampling.top_p = 0.9f;
  }
  r.raw = Chance(2);
  r.system_end = r.raw ? 0 : Int(0, static_cast<int>(n));
  r.tail_begin = r.raw ? n : std::max<int64_t>(r.system_end, n - 3);
  r.prompt_logprobs = Chance(40);
  r.cache_prompt = !Chance(12);
  if (Chance(10)) r.cache_salt = kSalt;
  return r;
}

void LawCase::Submit() {
  Request r = RandomRequest();
  auto stream = std::make_shared<TokenStream>();
  const int64_t max_tokens = r.max_tokens;
  Running running{.request = r, .stream = stream, .outcome = {}};
  running.ran_before = ended_prompts_.contains(r.prompt) && r.cache_prompt &&
                       r.cache_salt.empty() && !r.prompt_logprobs && options_.cache.enabled();
  // Replays after an eviction: chance alone makes three in a hundred cases of a KV-only model.
  if (running.ran_before && Chance(4)) EvictSome();
  ++stats_.queue_length;
  core_->Enqueue(std::make_unique<Sequence>(requests_.size() + 1, std::move(r), std::move(stream),
                                            max_tokens));
  requests_.push_back(std::move(running));
  ++coverage_.requests;
}

std::string LawCase::Run() {
  const bool slow = setup_.level == CpuLevel::kScalar && seed_ % 3 == 0;
  const size_t request_count = static_cast<size_t>(slow ? Int(2, 4) : Int(3, 6));
  const int together = Int(1, 4);
  for (int step = 0; step < kStepsMax && difference_.empty(); ++step) {
    const auto running = std::count_if(requests_.begin(), requests_.end(),
                                       [](const Running& r) { return !r.ended; });
    if (running == 0 && requests_.size() == request_count) break;
    if (requests_.size() < request_count && running < together && (running == 0 || Chance(3)))
      Submit();
    Disturb();
    Step();
    if (Chance(10)) CheckStates(4);
  }
  if (std::any_of(requests_.begin(), requests_.end(), [](const Running& r) { return !r.ended; }))
    Fail("a request without an end");
  CheckStates(12);
  ++coverage_.cases;
  coverage_.evictions += static_cast<int64_t>(stats_.evictions);
  coverage_.preemptions += static_cast<int64_t>(stats_.preemptions);
  return difference_;
}

void LawCase::EvictSome() {
  for (int i = Int(1, 8); i > 0 && core_->tree().EvictOne(); --i) ++evictions_before_;
}

void LawCase::Disturb() {
  if (!requests_.empty() && Chance(80)) {
    Running& r = requests_[static_cast<size_t>(Int(0, static_cast<int>(requests_.size()) - 1))];
    r.stream->Cancel();
    r.cancelled = true;
  }
  PrefixTree& tree = core_->tree();
  if (Chance(12) && tree.EvictOne()) ++evictions_before_;
  if (Chance(200)) {
    const auto nodes = tree.List();
    if (!nodes.empty()) tree.Drop(nodes[static_cast<size_t>(Int(0, 1 << 20)) % nodes.size()].id);
  }
}

void LawCase::Step() {
  bool decoding = false;
  for (const auto& s : core_->View().sequences) decoding |= std::strcmp(s.phase, "decode") == 0;
  const int64_t mixed = coverage_.batches.mixed_steps;
  core_->Step();
  core_->CheckInvariants();
  coverage_.mixed_steps += decoding && coverage_.batches.mixed_steps > mixed;
  Collect();
}

std::vector<Token> LawCase::TokensOf(const Running& r) const {
  std::vector<Token> tokens = r.request.prompt;
  tokens.insert(tokens.end(), r.outcome.tokens.begin(), r.outcome.tokens.end());
  return tokens;
}

void LawCase::Collect() {
  for (Running& r : requests_) {
    if (r.ended) continue;
    const size_t before = r.outcome.tokens.size();
    const bool admitted = r.outcome.reuse.has_value();
    r.outcome.AddAll(*r.stream);
    if (!admitted && r.outcome.reuse) CountReuse(r);
    for (size_t i = before; i < r.outcome.tokens.size(); ++i) CheckToken(r, i);
  }
  for (const Row& row : rows_) CheckRow(row);
  rows_.clear();
  for (Running& r : requests_) {
    if (r.ended || !r.outcome.end) continue;
    r.ended = true;
    CheckEnd(r);
  }
}

void LawCase::CountReuse(const Running& r) {
  const ReuseReport& reuse = *r.outcome.reuse;
  const int64_t point = reuse.restore_point;
  coverage_.full_hits += point == reuse.prompt_tokens;
  coverage_.partial_hits += point > 0 && point < reuse.prompt_tokens;
  coverage_.restores_inside_block += point % kBlockPositions != 0;
  coverage_.restores_off_grid += point % options_.cache.stride != 0;
  // The engine's own evictions are counted in bytes and paths, so only growth means something.
  const bool evicted = stats_.evictions + evictions_before_ > 0;
  coverage_.evicted_then_replayed += r.ran_before && evicted && reuse.replayed_tokens() > 1;
}

void LawCase::CheckRow(const Row& row) {
  const std::vector<Token> tokens = TokensOf(requests_[row.request]);
  const auto prefix = std::span<const Token>(tokens).first(static_cast<size_t>(row.position));
  ++coverage_.rows_compared;
  coverage_.generated_long_context += row.position > kSegmentPositions;
  if (!SameBits(row.logits, setup_.plain.Logits(prefix)))
    Fail("logits of request " + std::to_string(row.request) + " at position " +
         std::to_string(row.position));
}

void LawCase::CheckToken(const Running& r, size_t index) {
  const std::vector<Token> tokens = TokensOf(r);
  const auto prefix = std::span<const Token>(tokens).first(r.request.prompt.size() + index);
  const Token want = Sample({.logits = setup_.plain.Logits(prefix),
                             .tokens = prefix,
                             .prompt_size = static_cast<int64_t>(r.request.prompt.size()),
                             .params = &r.request.sampling,
                             .masked = {},
                             .end_tokens = {}},
                            scratch_);
  if (want != r.outcome.tokens[index])
    Fail("token " + std::to_string(index) + " of request " + r.request.id);
}

void LawCase::CheckEnd(Running& r) {
  const Outcome& o = r.outcome;
  if (!o.errors.empty()) Fail(o.errors.front());
  const int64_t generated = static_cast<int64_t>(o.tokens.size());
  if (o.end->generated != generated) Fail("the number of generated tokens");
  switch (o.end->reason) {
    case FinishReason::kError:
      ++coverage_.refused;
      if (!limited_) Fail("an error: " + o.end->error.ToString());
      break;
    case FinishReason::kCancelled:
      ++coverage_.cancelled;
      if (!r.cancelled) Fail("cancelled, but nobody asked for it");
      break;
    case FinishReason::kStop:
      Fail("stopped, but there is no end token");
      break;
    case FinishReason::kLength:
      if (generated != r.request.max_tokens) Fail("a short answer");
      if (r.request.cache_salt.empty()) ended_prompts_.insert(r.request.prompt);
      CheckPromptLogprobs(r);
      break;
  }
}

void LawCase::CheckPromptLogprobs(const Running& r) {
  const std::span<const Token> prompt = r.request.prompt;
  if (!r.request.prompt_logprobs) return;
  if (r.outcome.prompt_logprobs.size() + 1 != prompt.size()) Fail("the number of prompt logprobs");
  std::vector<TokenLogprob> top;
  for (size_t i = 0; i < r.outcome.prompt_logprobs.size() && difference_.empty(); ++i) {
    const TokenLogprob want =
        Logprobs(setup_.plain.Logits(prompt.first(i + 1)), prompt[i + 1], 0, scratch_, top);
    const TokenLogprob& got = r.outcome.prompt_logprobs[i].chosen;
    ++coverage_.prompt_rows_compared;
    if (got.token != want.token ||
        std::memcmp(&got.logprob, &want.logprob, sizeof want.logprob) != 0)
      Fail("prompt logprob " + std::to_string(i + 1) + " of request " + r.request.id);
  }
}

// Restores checkpoints that were not looked at yet, in random order.
void LawCase::CheckStates(int count_max) {
  std::map<uint64_t, std::vector<Token>> paths;
  std::vector<std::pair<uint64_t, bool>> fresh;  // id, salted
  for (const NodeInfo& node : core_->tree().List()) {
    std::vector<Token> path = paths[node.parent];
    path.insert(path.end(), node.tokens.begin(), node.tokens.end());
    paths[node.id] = std::move(path);
    if (node.has_state && !checked_nodes_.contains(node.id))
      fresh.emplace_back(node.id, node.salted);
  }
  std::shuffle(fresh.begin(), fresh.end(), random_);
  for (const auto& [id, salted] : fresh) {
    if (count_max-- == 0 || !difference_.empty()) return;
    checked_nodes_.insert(id);
    CheckState(paths[id], salted ? kSalt : "");
  }
}

void LawCase::CheckState(const std::vector<Token>& tokens, const std::string& salt) {
  PrefixTree& tree = core_->tree();
  const Match match = tree.Find(tokens, salt);
  if (match.restore_point != static_cast<int64_t>(tokens.size())) {
    Fail("a listed checkpoint that Find does not find");
    return;
  }
  BlockPool blocks(model_.layout());
  StatePool states(model_.layout());
  const Lease lease = tree.Acquire(match, salt);
  const Result<SequenceState> state = tree.Restore(lease, blocks, states);
  if (!state.ok()) {
    Fail("a restore failed: " + state.status().ToString());
    return;
  }
  ++coverage_.states_compared;
  const uint64_t digest =
      StateDigest(model_, state->state(), state->block_pointers(), state->length());
  if (digest != setup_.plain.State(tokens))
    Fail("the state restored at " + std::to_string(tokens.size()));
}

void LawCase::Fail(const std::string& what) {
  if (difference_.empty()) difference_ = what;
}

}  // namespace cairn::law
