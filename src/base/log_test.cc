#include "base/log.h"

#include <gtest/gtest.h>

#include <vector>

namespace cairn {
namespace {

TEST(Log, ALineHasItsFields) {
  const std::vector<LogField> fields = {
      {"request", "req-1"}, {"ms", int64_t{12}}, {"error", "a \"b\"\n"}, {"empty", ""}};
  EXPECT_EQ(LogLine(LogFormat::kText, LogLevel::kInfo, "[server] reply", fields),
            "[info] [server] reply request=req-1 ms=12 error=\"a \\\"b\\\"\\u000a\" empty=\"\"");
  EXPECT_EQ(LogLine(LogFormat::kJson, LogLevel::kWarning, "a\\b", fields),
            "\"level\":\"warning\",\"message\":\"a\\\\b\",\"request\":\"req-1\",\"ms\":12,"
            "\"error\":\"a \\\"b\\\"\\u000a\",\"empty\":\"\"");
}

TEST(Log, FormatsHaveNames) {
  EXPECT_EQ(ParseLogFormat("json").value(), LogFormat::kJson);
  EXPECT_EQ(ParseLogFormat("text").value(), LogFormat::kText);
  EXPECT_FALSE(ParseLogFormat("xml").ok());
}

}  // namespace
}  // namespace cairn
