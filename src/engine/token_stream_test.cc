#include "engine/token_stream.h"

#include <gtest/gtest.h>

#include <thread>

namespace cairn {
namespace {

using Clock = std::chrono::steady_clock;

TEST(TokenStream, EventsComeInOrderAcrossThreads) {
  TokenStream stream;
  std::atomic<int> wakeups{0};
  stream.SetWakeup([&] { ++wakeups; });
  std::thread engine([&] {
    for (int i = 0; i < 1000; ++i) stream.Push(TokenEvent{i, {}, {}});
    stream.Push(EndEvent{.reason = FinishReason::kLength, .error = {}, .stop_token = {}});
  });
  for (int i = 0; i < 1000; ++i) {
    auto event = stream.Next(Clock::now() + std::chrono::seconds(20));
    ASSERT_TRUE(event && std::holds_alternative<TokenEvent>(*event));
    EXPECT_EQ(std::get<TokenEvent>(*event).token, i);
  }
  auto end = stream.Next(Clock::now() + std::chrono::seconds(20));
  ASSERT_TRUE(end && std::holds_alternative<EndEvent>(*end));
  engine.join();
  EXPECT_EQ(wakeups, 1001);
  EXPECT_FALSE(stream.Next(Clock::now()).has_value());
}

TEST(TokenStream, DrainTakesWhatIsThere) {
  TokenStream stream;
  EXPECT_TRUE(stream.Drain().empty());
  for (int i = 0; i < 5; ++i) stream.Push(TokenEvent{i, {}, {}});
  ASSERT_TRUE(stream.Next(Clock::now()).has_value());
  const auto events = stream.Drain();
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(std::get<TokenEvent>(events[0]).token, 1);
  EXPECT_TRUE(stream.Drain().empty());
}

TEST(TokenStream, CancelAndEndRingTheEngine) {
  auto bell = std::make_shared<Doorbell>();
  TokenStream stream(bell);
  EXPECT_FALSE(stream.cancelled());
  EXPECT_FALSE(stream.ended().has_value());
  stream.End(3);
  EXPECT_EQ(stream.ended(), 3);
  EXPECT_TRUE(bell->rung);
  bell->rung = false;
  stream.Cancel();
  EXPECT_TRUE(stream.cancelled());
  EXPECT_TRUE(bell->rung);
}

}  // namespace
}  // namespace cairn
