// Conversations that make requests: the generator behind the built-in traces.
#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <queue>
#include <random>

#include "base/check.h"
#include "cache/sim/trace.h"

namespace cairn {
namespace {

constexpr int64_t kHeaderTokens = 3;  // "<|im_start|>user\n" and its like
constexpr int64_t kTrailerTokens = 2;
constexpr int64_t kStubTokens = 12;    // what is left of a collapsed tool answer
constexpr int64_t kPromptMax = 60000;  // a conversation ends there
// Seeds of segments that many prompts share.
constexpr uint64_t kTrailerSeed = 1, kRoleSeed = 2, kStubSeed = 9, kTitleSeed = 10,
                   kSummarySeed = 11, kSystemSeed = 1000, kUserSeed = 1000000,
                   kDocumentSeed = 2000000;

enum Role : uint64_t { kSystem, kUser, kAssistant, kTool };

struct Message {
  Role role;
  std::vector<Segment> text;
};

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  double Uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }
  bool Chance(double p) { return Uniform() < p; }
  double Exponential(double mean) { return -mean * std::log(1 - Uniform()); }
  // At least 1; the exponential's long tail is cut at four means.
  int64_t Length(double mean) {
    return 1 + static_cast<int64_t>(std::min(Exponential(mean), 4 * mean));
  }
  int Geometric(double mean) {  // at least 1
    int n = 1;
    while (mean > 1 && n < 200 && Chance(1 - 1 / mean)) ++n;
    return n;
  }
  int Zipf(int n, double exponent) {
    double total = 0;
    for (int i = 1; i <= n; ++i) total += std::pow(i, -exponent);
    double at = Uniform() * total;
    for (int i = 1; i < n; ++i) {
      at -= std::pow(i, -exponent);
      if (at < 0) return i - 1;
    }
    return n - 1;
  }
  uint64_t Seed() { return engine_() | uint64_t{1} << 63; }  // of a text that nobody else has

 private:
  std::mt19937_64 engine_;
};

class Conversation {
 public:
  Conversation(const TrafficProfile& profile, int kind, Random& random)
      : profile_(profile), random_(random), turns_left_(random.Geometric(profile.turns)) {
    const uint64_t base = static_cast<uint64_t>(kind) * 10000000;
    const int user = random.Zipf(profile.users, profile.zipf);
    if (profile.salted) salt_ = "user " + std::to_string(user);
    if (profile.system_tokens > 0) {
      const int system = random.Zipf(profile.systems, profile.zipf);
      // Half to one and a half times as long, the same for each use.
      const int64_t length =
          profile.system_tokens / 2 +
          (static_cast<int64_t>(system) * 7919 + 400) % 1000 * profile.system_tokens / 1000;
      Message message{kSystem, {{kSystemSeed + base + system, std::max<int64_t>(1, length)}}};
      if (profile.user_tokens > 0) {
        message.text.push_back({kUserSeed + base + user, profile.user_tokens});
      }
      messages_.push_back(std::move(message));
    }
    if (random.Chance(profile.one_shot)) {
      document_ = Segment{random.Seed(), DocumentLength(random.Uniform())};
      turns_left_ = 1;
    } else if (profile.documents > 0) {
      const int document = random.Zipf(profile.documents, profile.zipf);
      const double share = static_cast<double>(document * 7919 % 1000) / 1000;
      document_ = Segment{kDocumentSeed + base + document, DocumentLength(share)};
    }
  }

  // Appends the next request; false: the conversation is over. `pause` is the time until the next.
  bool Next(TraceRequest& request, double& pause) {
    pause = random_.Exponential(profile_.think);
    request.salt = salt_;
    if (side_title_ || side_summary_) {
      MakeSide(request);
      return true;
    }
    if (tool_calls_left_ == 0 && !StartTurn()) return false;
    Ask(request);
    if (tool_calls_left_ > 0) pause /= 20;  // tools answer sooner than people
    if (side_title_ || side_summary_) pause /= 20;
    return true;
  }

 private:
  int64_t DocumentLength(double share) const {
    return static_cast<int64_t>(profile_.document_tokens * (0.25 + 1.75 * share));
  }

  bool StartTurn() {
    if (turns_left_-- <= 0 || Length() > kPromptMax) return false;
    const bool again = !messages_.empty() && messages_.back().role == kAssistant;
    if (again && random_.Chance(profile_.regenerate)) {
      messages_.pop_back();
      return true;
    }
    if (again && random_.Chance(profile_.edit)) {
      Edit();
      return true;
    }
    for (Message& message : messages_) {  // templates leave out the reasoning of earlier turns
      if (message.role == kAssistant && message.text.size() > 1) {
        message.text.erase(message.text.begin());
      }
    }
    Message question{kUser, {{random_.Seed(), random_.Length(profile_.question_tokens)}}};
    if (document_) question.text.insert(question.text.begin(), *document_);
    document_.reset();
    messages_.push_back(std::move(question));
    if (profile_.tool_calls > 0) tool_calls_left_ = random_.Geometric(profile_.tool_calls);
    return true;
  }

  // The last questions are the likeliest to be changed.
  void Edit() {
    std::vector<size_t> questions;
    for (size_t i = 0; i < messages_.size(); ++i) {
      if (messages_[i].role == kUser) questions.push_back(i);
    }
    size_t back = 1;
    while (back < questions.size() && random_.Chance(0.5)) ++back;
    const size_t at = questions[questions.size() - back];
    messages_.resize(at + 1);
    Segment& text = messages_[at].text.back();
    // The front half stays.
    const int64_t kept = text.length / 2;
    text.length = std::max<int64_t>(1, kept);
    messages_[at].text.push_back({random_.Seed(), random_.Length(profile_.question_tokens)});
  }

  void Ask(TraceRequest& request) {
    CollapseTools();
    request.prompt = Render(messages_);
    Message answer{kAssistant, {}};
    if (profile_.reasoning_tokens > 0) {
      answer.text.push_back({random_.Seed(), random_.Length(profile_.reasoning_tokens)});
    }
    answer.text.push_back({random_.Seed(), random_.Length(profile_.answer_tokens)});
    request.output = answer.text;
    messages_.push_back(std::move(answer));
    if (tool_calls_left_ > 0 && --tool_calls_left_ > 0) {
      messages_.push_back({kTool, {{random_.Seed(), random_.Length(profile_.tool_tokens)}}});
      return;
    }
    side_title_ = !had_title_ && random_.Chance(profile_.title);
    had_title_ = true;
    side_summary_ = random_.Chance(profile_.summary);
  }

  // In batches, as agents do: a change on every call would spoil every call.
  void CollapseTools() {
    if (profile_.tools_kept <= 0) return;
    std::vector<Message*> whole;
    for (Message& message : messages_) {
      if (message.role == kTool && message.text[0].seed != kStubSeed) whole.push_back(&message);
    }
    if (whole.size() < 2 * static_cast<size_t>(profile_.tools_kept)) return;
    for (size_t i = 0; i + profile_.tools_kept < whole.size(); ++i) {
      whole[i]->text = {{kStubSeed, kStubTokens}};
    }
  }

  // A title from the first question under a system prompt of its own; else, for every second
  // conversation, a request that quotes the whole conversation, or one that goes on from it.
  void MakeSide(TraceRequest& request) {
    std::vector<Message> side;
    if (side_title_) {
      side_title_ = false;
      side.push_back({kSystem, {{kTitleSeed, 60}}});
      const auto first = std::find_if(messages_.begin(), messages_.end(),
                                      [](const Message& m) { return m.role == kUser; });
      side.push_back({kUser, first->text});
      side.back().text.back().length = std::min<int64_t>(side.back().text.back().length, 500);
      if (side.back().text.size() > 1) {
        side.back().text.front().length = std::min<int64_t>(side.back().text.front().length, 500);
      }
      request.output = {{random_.Seed(), 8 + random_.Length(8)}};
    } else {
      side_summary_ = false;
      if (random_.Chance(0.5)) {
        side = messages_;
      } else {
        side.push_back({kSystem, {{kSummarySeed, 120}}});
        side.push_back({kUser, {}});
        for (const Message& message : messages_) {
          if (message.role == kSystem || message.role == kTool) continue;
          side.back().text.insert(side.back().text.end(), message.text.begin(), message.text.end());
        }
      }
      side.push_back({kUser, {{kSummarySeed + 1, 40}}});
      request.output = {{random_.Seed(), random_.Length(120)}};
    }
    request.prompt = Render(side);
  }

  static std::vector<Segment> Render(const std::vector<Message>& messages) {
    std::vector<Segment> prompt;
    for (const Message& message : messages) {
      prompt.push_back({kRoleSeed + message.role, kHeaderTokens, true});
      prompt.insert(prompt.end(), message.text.begin(), message.text.end());
      prompt.push_back({kTrailerSeed, kTrailerTokens});
    }
    prompt.push_back({kRoleSeed + kAssistant, kHeaderTokens, true});
    return prompt;
  }

  int64_t Length() const {
    int64_t length = 0;
    for (const Message& message : messages_) {
      for (const Segment& segment : message.text) length += segment.length;
    }
    return length;
  }

  const TrafficProfile& profile_;
  Random& random_;
  std::string salt_;
  std::vector<Message> messages_;
  std::optional<Segment> document_;  // of the next question
  int turns_left_;
  int tool_calls_left_ = 0;
  bool had_title_ = false, side_title_ = false, side_summary_ = false;
};

}  // namespace

Trace MakeTrace(std::string name, const std::vector<TrafficProfile>& profiles, int count,
                double parallel, uint64_t seed) {
  CHECK(!profiles.empty());
  Trace trace{std::move(name), {}};
  Random random(seed);
  double weights = 0, life = 0;  // mean time that a conversation is open
  for (const TrafficProfile& p : profiles) {
    weights += p.weight;
    life += p.weight * p.turns * p.think;
  }
  const double gap = life / weights / parallel;
  struct Event {
    double time;
    int64_t order;
    std::shared_ptr<Conversation> conversation;  // empty: a new one begins
    bool operator<(const Event& other) const {   // the earliest is the queue's top
      return std::pair(time, order) > std::pair(other.time, other.order);
    }
  };
  std::priority_queue<Event> events;
  int64_t order = 0;
  events.push({0, order++, nullptr});
  while (static_cast<int>(trace.requests.size()) < count) {
    Event event = events.top();
    events.pop();
    if (!event.conversation) {
      events.push({event.time + random.Exponential(gap), order++, nullptr});
      double at = random.Uniform() * weights;
      size_t kind = 0;
      while (kind + 1 < profiles.size() && (at -= profiles[kind].weight) >= 0) ++kind;
      event.conversation =
          std::make_shared<Conversation>(profiles[kind], static_cast<int>(kind), random);
    }
    TraceRequest request;
    request.time = event.time;
    double pause = 0;
    if (!event.conversation->Next(request, pause)) continue;
    trace.requests.push_back(std::move(request));
    events.push({event.time + pause, order++, std::move(event.conversation)});
  }
  return trace;
}

namespace {

struct Builtin {
  const char* name;
  double parallel;
  std::vector<TrafficProfile> profiles;
};

std::vector<Builtin> Builtins() {
  const TrafficProfile chat{.users = 40, .user_tokens = 60, .turns = 8};
  TrafficProfile edits = chat;
  edits.edit = 0.3;
  edits.regenerate = 0.1;
  const TrafficProfile agent{.system_tokens = 6000,
                             .users = 20,
                             .turns = 4,
                             .question_tokens = 80,
                             .answer_tokens = 150,
                             .tool_calls = 8,
                             .tool_tokens = 900,
                             .tools_kept = 4,
                             .reasoning_tokens = 200};
  const TrafficProfile system{
      .systems = 3, .system_tokens = 3000, .users = 200, .turns = 2, .question_tokens = 60};
  const TrafficProfile documents{.system_tokens = 300,
                                 .documents = 60,
                                 .document_tokens = 12000,
                                 .turns = 3,
                                 .question_tokens = 40,
                                 .answer_tokens = 150};
  TrafficProfile side = chat;
  side.title = 1;
  side.summary = 0.4;
  TrafficProfile one_shot = documents;
  one_shot.one_shot = 1;
  one_shot.weight = 0.6;
  TrafficProfile small = chat;
  small.turns = 12;
  small.question_tokens = 50;
  small.answer_tokens = 120;
  const auto part = [](TrafficProfile p, double weight) {
    p.weight = weight;
    return p;
  };
  return {{"chat", 30, {chat}},
          {"edits", 30, {edits}},
          {"agent", 8, {agent}},
          {"system", 40, {system}},
          {"documents", 12, {documents}},
          {"side", 30, {side}},
          {"one-shot", 30, {small, one_shot}},
          {"mix",
           30,
           {part(edits, 2), part(agent, 0.5), part(system, 3), part(documents, 1), part(side, 3),
            part(one_shot, 0.5)}}};
}

}  // namespace

std::vector<std::string> BuiltinTraceNames() {
  std::vector<std::string> names;
  for (const Builtin& builtin : Builtins()) names.emplace_back(builtin.name);
  return names;
}

Trace MakeBuiltinTrace(std::string_view name, int count, uint64_t seed) {
  for (const Builtin& builtin : Builtins()) {
    if (builtin.name == name) {
      return MakeTrace(builtin.name, builtin.profiles, count, builtin.parallel, seed);
    }
  }
  CHECK(!"a known trace");
  return {};
}

Trace MakeRandomTrace(int count, uint64_t seed) {
  Random random(seed * 7919 + 17);
  const auto pick = [&](double low, double high) {  // uniform in the logarithm
    return low * std::pow(high / low, random.Uniform());
  };
  const auto maybe = [&](double chance, double low, double high) {
    return random.Chance(chance) ? pick(low, high) : 0.0;
  };
  std::vector<TrafficProfile> profiles(1 + random.Geometric(2));
  for (TrafficProfile& p : profiles) {
    p.weight = pick(0.2, 3);
    p.systems = static_cast<int>(pick(1, 20));
    p.zipf = pick(0.5, 1.5);
    p.system_tokens = static_cast<int>(maybe(0.9, 50, 8000));
    p.users = static_cast<int>(pick(5, 500));
    p.user_tokens = static_cast<int>(maybe(0.3, 20, 1000));
    p.documents = static_cast<int>(maybe(0.3, 5, 200));
    p.document_tokens = static_cast<int>(pick(1000, 20000));
    p.one_shot = maybe(0.2, 0.05, 1);
    p.turns = pick(1, 15);
    p.question_tokens = static_cast<int>(pick(20, 400));
    p.answer_tokens = static_cast<int>(pick(20, 600));
    p.think = pick(0.2, 5);
    p.edit = maybe(0.4, 0.03, 0.4);
    p.regenerate = maybe(0.4, 0.03, 0.3);
    p.title = maybe(0.4, 0.3, 1);
    p.summary = maybe(0.3, 0.05, 0.5);
    if (random.Chance(0.25)) {
      p.tool_calls = pick(2, 10);
      p.tool_tokens = static_cast<int>(pick(100, 2000));
      p.tools_kept = static_cast<int>(maybe(0.6, 2, 8));
    }
    p.reasoning_tokens = static_cast<int>(maybe(0.3, 50, 500));
    p.salted = random.Chance(0.1);
  }
  return MakeTrace("random " + std::to_string(seed), profiles, count, pick(4, 60), seed);
}

}  // namespace cairn
