// The engine with its thread: what other threads may do to it.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "support/engine_harness.h"

namespace cairn {
namespace {

using std::chrono::milliseconds;

Request MakeRequest(uint64_t seed, int64_t n, int64_t max_tokens) {
  Request r;
  r.prompt = RandomTokens(seed, n);
  r.max_tokens = max_tokens;
  r.raw = true;
  r.tail_begin = n;
  return r;
}

// Lets a test hold the engine inside Forward.
struct Gate {
  std::mutex mutex;
  std::condition_variable changed;
  bool open = true;
  int waiting = 0;
  bool throws = false;

  void Pass() {
    std::unique_lock lock(mutex);
    ++waiting;
    changed.notify_all();
    changed.wait(lock, [&] { return open; });
    --waiting;
    if (throws) throw std::bad_alloc();
  }
  void Set(bool is_open) {
    std::lock_guard lock(mutex);
    open = is_open;
    changed.notify_all();
  }
  void AwaitHeld() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return waiting > 0; });
  }
};

struct Fixture {
  explicit Fixture(EngineOptions options = CoreDriver::SmallOptions()) {
    FakeModelOptions m;
    m.context_length = 2000;
    m.on_forward = [this](const ForwardBatch&) { gate.Pass(); };
    model = std::make_shared<FakeModel>(m);
    options.threads = 2;
    engine = std::move(Engine::Create(model, options)).value();
  }
  ~Fixture() {
    gate.Set(true);
    engine.reset();
    for (const std::string& v : model->violations()) ADD_FAILURE() << v;
  }
  std::string Check(const Request& r) {
    auto stream = engine->Submit(r);
    if (!stream.ok()) return stream.status().ToString();
    return Difference(Collect(**stream), ExpectedOutcome(*model, r, engine->options().end_tokens));
  }
  bool AwaitIdle() {
    for (int i = 0; i < 5000; ++i) {
      const EngineStats& s = engine->stats();
      if (s.slots_busy == 0 && s.queue_length == 0 && s.live_bytes == 0) return true;
      std::this_thread::sleep_for(milliseconds(1));
    }
    return false;
  }

  Gate gate;
  std::shared_ptr<FakeModel> model;
  std::unique_ptr<Engine> engine;
};

TEST(Engine, ServesManyClientsAtOnce) {
  Fixture f;
  std::vector<std::thread> clients;
  std::atomic<int> wrong{0};
  for (int c = 0; c < 8; ++c)
    clients.emplace_back([&, c] {
      for (int i = 0; i < 12; ++i) {
        Request r = MakeRequest(i % 5, 30 + 40 * c, 3 + i);
        r.sampling.temperature = c % 2 ? 1.0f : 0.0f;
        r.sampling.seed = static_cast<uint64_t>(i);
        r.logprobs = 2;
        const std::string difference = f.Check(r);
        if (!difference.empty() && ++wrong) ADD_FAILURE() << difference;
      }
    });
  for (auto& t : clients) t.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_TRUE(f.AwaitIdle());
  EXPECT_EQ(f.engine->stats().requests, 96u);
  EXPECT_GT(f.engine->stats().cached_tokens, 0u);
  EXPECT_EQ(f.engine->stats().prompt_tokens,
            f.engine->stats().cached_tokens + f.engine->stats().replayed_tokens);
}

TEST(Engine, WrongRequestsAreRefusedAtOnce) {
  Fixture f;
  EXPECT_EQ(f.engine->Submit(Request{}).status().code(), StatusCode::kInvalidArgument);
  Request r = MakeRequest(1, 5, 2);
  r.prompt[3] = 24;
  EXPECT_EQ(f.engine->Submit(r).status().code(), StatusCode::kInvalidArgument);
  r.prompt[3] = -1;
  EXPECT_EQ(f.engine->Submit(r).status().code(), StatusCode::kInvalidArgument);
  r = MakeRequest(1, 5, -1);
  EXPECT_EQ(f.engine->Submit(r).status().code(), StatusCode::kInvalidArgument);
  const auto too_long = f.engine->Submit(MakeRequest(1, 2000, 1));
  EXPECT_EQ(too_long.status().code(), StatusCode::kContextLength);
  EXPECT_EQ(too_long.status().message(),
            "request (2000 tokens) exceeds the available context size (2000 tokens)");
  EXPECT_EQ(f.Check(MakeRequest(1, 1999, 5)), "");
}

TEST(Engine, QueueFull) {
  EngineOptions options = CoreDriver::SmallOptions();
  options.decode_concurrency = 2;
  options.queue_limit = 3;
  Fixture f(options);
  f.gate.Set(false);
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (int i = 0; i < 5; ++i) {
    auto s = f.engine->Submit(MakeRequest(i, 40, 3));
    ASSERT_TRUE(s.ok()) << i;
    streams.push_back(*s);
  }
  EXPECT_EQ(f.engine->Submit(MakeRequest(9, 40, 3)).status().code(),
            StatusCode::kResourceExhausted);
  f.gate.Set(true);
  for (auto& s : streams) EXPECT_EQ(Collect(*s).end->reason, FinishReason::kLength);
  EXPECT_EQ(f.Check(MakeRequest(9, 40, 3)), "");
}

TEST(Engine, ADisconnectFreesTheSlotWithinOneStep) {
  Fixture f;
  f.gate.Set(false);
  auto stream = std::move(f.engine->Submit(MakeRequest(1, 100, 1500))).value();
  f.gate.AwaitHeld();
  const uint64_t steps = f.engine->stats().steps;
  stream->Cancel();
  f.gate.Set(true);
  const Outcome o = Collect(*stream);
  EXPECT_EQ(o.end->reason, FinishReason::kCancelled);
  EXPECT_LE(f.engine->stats().steps, steps + 1);
  EXPECT_TRUE(f.AwaitIdle());
  EXPECT_EQ(f.engine->stats().cancelled, 1u);
}

TEST(Engine, EndWakesASleepingEngine) {
  Fixture f;
  Request r = MakeRequest(1, 100, 5);
  r.has_stop_strings = true;
  auto stream = std::move(f.engine->Submit(r)).value();
  EXPECT_EQ(Collect(*stream).end->reason, FinishReason::kLength);
  std::this_thread::sleep_for(milliseconds(20));
  stream->End(5);
  EXPECT_TRUE(f.AwaitIdle());
}

TEST(Engine, SleepsWhenIdle) {
  Fixture f;
  EXPECT_EQ(f.Check(MakeRequest(1, 100, 5)), "");
  EXPECT_TRUE(f.AwaitIdle());
  timespec before{}, after{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
  std::this_thread::sleep_for(milliseconds(200));
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
  const double cpu_ms =
      (after.tv_sec - before.tv_sec) * 1e3 + (after.tv_nsec - before.tv_nsec) / 1e6;
  EXPECT_LT(cpu_ms, 40);  // a busy loop takes 200
}

TEST(Engine, CommandsRunBetweenSteps) {
  Fixture f;
  Request r = MakeRequest(1, 100, 5);
  r.id = "request-7";
  EXPECT_EQ(f.Check(r), "");
  f.gate.Set(false);
  auto stream = std::move(f.engine->Submit(r)).value();
  f.gate.AwaitHeld();
  std::thread opener([&] {
    std::this_thread::sleep_for(milliseconds(10));
    f.gate.Set(true);
  });
  size_t nodes = 0;
  EXPECT_TRUE(f.engine
                  ->Run([&](EngineView& v) {
                    nodes = v.tree.List().size();
                    for (auto& s : v.sequences) EXPECT_EQ(s.request_id, "request-7");
                  })
                  .ok());
  EXPECT_GT(nodes, 0u);
  opener.join();
  Collect(*stream);
  EXPECT_TRUE(f.engine->Run([](EngineView& v) { v.tree.Clear(); }).ok());
  EXPECT_EQ(f.engine->stats().cache_bytes, 0u);
  const Status failed = f.engine->Run([](EngineView&) { throw std::runtime_error("x"); });
  EXPECT_EQ(failed.code(), StatusCode::kInternal);
}

TEST(Engine, DrainRefusesAndCancelAllEnds) {
  Fixture f;
  f.gate.Set(false);
  auto a = std::move(f.engine->Submit(MakeRequest(1, 100, 1800))).value();
  auto b = std::move(f.engine->Submit(MakeRequest(2, 100, 1800))).value();
  f.gate.AwaitHeld();
  f.engine->Drain();
  EXPECT_EQ(f.engine->Submit(MakeRequest(3, 10, 1)).status().code(), StatusCode::kUnavailable);
  f.engine->CancelAll();
  f.gate.Set(true);
  EXPECT_EQ(Collect(*a).end->reason, FinishReason::kCancelled);
  EXPECT_EQ(Collect(*b).end->reason, FinishReason::kCancelled);
  EXPECT_TRUE(f.AwaitIdle());
}

TEST(Engine, DestructionWhileRunningEndsEveryStream) {
  for (int round = 0; round < 10; ++round) {
    std::vector<std::shared_ptr<TokenStream>> streams;
    {
      Fixture f;
      for (int i = 0; i < 12; ++i)
        streams.push_back(std::move(f.engine->Submit(MakeRequest(i, 100, 1500))).value());
      std::this_thread::sleep_for(milliseconds(round));
    }
    for (auto& s : streams) {
      const Outcome o = Collect(*s);
      ASSERT_TRUE(o.end);
      EXPECT_EQ(o.end->reason, FinishReason::kCancelled);
      s->Cancel();  // the engine is gone; nothing to ring
    }
  }
}

TEST(Engine, AFaultEndsWhatRunsAndTheEngineGoesOn) {
  Fixture f;
  EXPECT_EQ(f.Check(MakeRequest(1, 100, 5)), "");
  {
    std::lock_guard lock(f.gate.mutex);
    f.gate.throws = true;
  }
  auto stream = std::move(f.engine->Submit(MakeRequest(2, 100, 5))).value();
  const Outcome o = Collect(*stream);
  EXPECT_EQ(o.end->reason, FinishReason::kError);
  EXPECT_EQ(o.end->error.code(), StatusCode::kInternal);
  {
    std::lock_guard lock(f.gate.mutex);
    f.gate.throws = false;
  }
  EXPECT_TRUE(f.engine->healthy());  // Forward touches private state only
  EXPECT_EQ(f.Check(MakeRequest(1, 100, 5)), "");
  EXPECT_TRUE(f.AwaitIdle());
}

TEST(Engine, WakeupIsCalledForEachEvent) {
  Fixture f;
  std::atomic<int> wakeups{0};
  auto stream = std::move(f.engine->Submit(MakeRequest(1, 40, 5), [&] { ++wakeups; })).value();
  Collect(*stream);
  // The last wakeup comes after the event it tells of.
  for (int i = 0; i < 5000 && wakeups < 8; ++i) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_EQ(wakeups, 8);  // admitted, progress, five tokens, end
}

TEST(Engine, WrongOptionsAreRefused) {
  auto model = std::make_shared<FakeModel>();
  EngineOptions o = CoreDriver::SmallOptions();
  o.logit_rows_max = o.decode_concurrency - 1;
  EXPECT_EQ(Engine::Create(model, o).status().code(), StatusCode::kInvalidArgument);
  o = CoreDriver::SmallOptions();
  o.threads = 0;
  EXPECT_EQ(Engine::Create(model, o).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Engine::Create(nullptr, CoreDriver::SmallOptions()).status().code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace cairn
