// The policies on made-up traffic, through the real tree; and the simulator's own parts.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>

#include "cache/sim/compare.h"
#include "cache/sim/trace_file.h"

namespace cairn {
namespace {

std::string Describe(const CompareRow& row) {
  return row.trace + ", " + std::to_string(100 * row.budget) + " %, " + row.policy;
}

// The promise of the value policy: never more than a point below lru, far above it where there are
// side requests and edits.
TEST(CachePolicies, ValueIsNotBelowLru) {
  CompareOptions options;
  options.budgets = {0.005, 0.02, 0.05, 0.1, 0.25, 0.5};
  std::vector<CompareRow> rows;
  for (const std::string& name : BuiltinTraceNames()) {
    const Status done = CompareOn(MakeBuiltinTrace(name, 200, 5), options,
                                  [&](const CompareRow& row) { rows.push_back(row); });
    ASSERT_TRUE(done.ok()) << done.message();
  }
  std::map<std::string, double> gain;  // summed over budgets
  for (size_t i = 0; i + 1 < rows.size(); ++i) {
    if (rows[i].policy != "value") continue;
    ASSERT_EQ(rows[i + 1].policy, "lru");
    const double difference = 100 * (rows[i].figures.hit_rate() - rows[i + 1].figures.hit_rate());
    EXPECT_GE(difference, -1) << Describe(rows[i]);
    gain[rows[i].trace] += difference;
  }
  EXPECT_GT(gain.at("side"), 20);
  EXPECT_GT(gain.at("edits"), 20);
  EXPECT_GT(gain.at("mix"), 0);
}

TEST(CachePolicies, RandomMixturesToo) {
  CompareOptions options;
  options.budgets = {0.05, 0.25};
  std::vector<CompareRow> rows;
  for (uint64_t seed = 101; seed < 113; ++seed) {
    const Status done = CompareOn(MakeRandomTrace(150, seed), options,
                                  [&](const CompareRow& row) { rows.push_back(row); });
    ASSERT_TRUE(done.ok()) << done.message();
  }
  for (const Difference& d : Differences(rows)) {
    EXPECT_GT(d.median, 0) << d.budget;
    EXPECT_GT(d.p10, -1) << d.budget << " " << d.worst;
  }
}

TEST(CacheReplay, KeepsTheLimitAndTheInvariantsUnderEveryPolicy) {
  for (const SimPolicy policy : {SimPolicy::kValue, SimPolicy::kLru, SimPolicy::kLruType,
                                 SimPolicy::kGridOnly, SimPolicy::kFuture}) {
    for (const uint64_t state_bytes : {uint64_t{20205568}, uint64_t{0}}) {
      ReplayOptions options;
      options.policy = policy;
      options.shape.state_bytes = state_bytes;
      options.bytes_max = state_bytes > 0 ? uint64_t{1} << 30 : uint64_t{200} << 20;
      options.check_each_request = true;
      const auto figures = Replay(MakeBuiltinTrace("documents", 60, 3), options);
      ASSERT_TRUE(figures.ok()) << figures.status().message();
      EXPECT_LE(figures->bytes_most, *options.bytes_max) << SimPolicyName(policy);
      // Without a recurrent state there is no grid.
      const bool keeps = policy != SimPolicy::kGridOnly || state_bytes > 0;
      EXPECT_EQ(figures->evictions > 0, keeps) << SimPolicyName(policy);
      EXPECT_EQ(figures->reused_tokens > 0, keeps) << SimPolicyName(policy);
    }
  }
}

TEST(CacheReplay, IsDeterministic) {
  ReplayOptions options;
  options.bytes_max = uint64_t{1} << 30;
  const auto a = Replay(MakeBuiltinTrace("mix", 150, 3), options);
  const auto b = Replay(MakeBuiltinTrace("mix", 150, 3), options);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(a->restore_points, b->restore_points);
  EXPECT_GT(a->evicted_reasons, 0);
}

class TraceFile : public testing::Test {
 protected:
  std::string Write(const std::string& text) {
    path_ = testing::TempDir() + "cairn_trace_" + std::to_string(::getpid()) + ".jsonl";
    std::ofstream(path_) << text;
    return path_;
  }
  void TearDown() override {
    if (!path_.empty()) std::filesystem::remove(path_);
  }
  std::string path_;
};

TEST_F(TraceFile, TokensSegmentsTurnsAndSalts) {
  const auto trace = ReadTraceFile(
      Write("{\"t\":1,\"tokens\":[5,6,7],\"turns\":[0,2],\"output_tokens\":[8],\"salt\":\"a\"}\n\n"
            "{\"t\": 2.5, \"x\": {\"y\": [1, null, \"z\\\"\"]}, \"segments\": [[1, 4], [2, 3, 1]],"
            " \"output_segments\": [[9, 2]]}\n"));
  ASSERT_TRUE(trace.ok()) << trace.status().message();
  ASSERT_EQ(trace->requests.size(), 2u);
  const TokenRequest a = Tokenize(trace->requests[0]), b = Tokenize(trace->requests[1]);
  EXPECT_EQ(a.tokens, (std::vector<Token>{5, 6, 7, 8}));
  EXPECT_EQ(a.turn_starts, (std::vector<int64_t>{0, 2}));
  EXPECT_EQ(a.prompt_tokens, 3);
  EXPECT_EQ(trace->requests[0].salt, "a");
  EXPECT_EQ(b.tokens.size(), 9u);
  EXPECT_EQ(b.prompt_tokens, 7);
  EXPECT_EQ(b.turn_starts, std::vector<int64_t>{4});
  // A segment is a prefix of a longer one with its seed.
  TraceRequest longer;
  longer.prompt = {{1, 6}};
  const TokenRequest c = Tokenize(longer);
  EXPECT_TRUE(std::equal(c.tokens.begin(), c.tokens.begin() + 4, b.tokens.begin()));
}

TEST_F(TraceFile, AnAnswersTokensAreThoseALaterPromptGoesOnWith) {
  const auto trace =
      ReadTraceFile(Write("{\"tokens\":[1,2],\"output\":2}\n"
                          "{\"tokens\":[1,2,3],\"output\":1,\"salt\":\"other\"}\n"
                          "{\"tokens\":[1,2,7,8,9],\"output\":3}\n"));
  ASSERT_TRUE(trace.ok()) << trace.status().message();
  EXPECT_EQ(Tokenize(trace->requests[0]).tokens, (std::vector<Token>{1, 2, 7, 8}));
  EXPECT_EQ(Tokenize(trace->requests[1]).tokens.size(), 4u);
  EXPECT_EQ(Tokenize(trace->requests[2]).tokens.size(), 8u);
}

TEST_F(TraceFile, ErrorsNameTheLine) {
  for (const char* text : {"{\"tokens\":[1,2]", "{\"tokens\":[-1]}", "{\"t\":1}", "[1]",
                           "{\"tokens\":[1]} x", "{\"tokens\":[1],\"segments\":[[1,2]]}",
                           "{\"segments\":[[1]]}", "{\"tokens\":[1],\"turns\":[1]}",
                           "{\"segments\":[[1,99999999]]}", "{\"tokens\":[1],\"output\":-1}"}) {
    const auto trace = ReadTraceFile(Write(std::string("{\"tokens\":[1]}\n") + text + "\n"));
    ASSERT_FALSE(trace.ok()) << text;
    EXPECT_EQ(trace.status().code(), StatusCode::kDataLoss);
    EXPECT_NE(trace.status().message().find(":2: "), std::string::npos) << text;
  }
  EXPECT_FALSE(ReadTraceFile(Write("{\"t\":2,\"tokens\":[1]}\n{\"t\":1,\"tokens\":[1]}\n")).ok());
  for (const char* path : {"/no/such/trace", "/tmp", "/dev/zero"})
    EXPECT_EQ(ReadTraceFile(path).status().code(), StatusCode::kNotFound) << path;
}

}  // namespace
}  // namespace cairn
