#include "server/access.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

HttpRequest With(HttpHeaders headers, bool from_loopback = true) {
  HttpRequest request;
  request.headers = std::move(headers);
  request.from_loopback = from_loopback;
  return request;
}

TEST(Access, SecretsAreEqualOnlyIfAllBytesAre) {
  EXPECT_TRUE(SameSecret("abc", "abc"));
  for (const char* given : {"", "ab", "abd", "abcabc", "abcd", "Abc"})
    EXPECT_FALSE(SameSecret(given, "abc")) << given;
  EXPECT_FALSE(SameSecret("", ""));
}

TEST(Access, KeysByEitherHeader) {
  const AccessOptions options{.api_keys = {"one", "two"}, .admin_key = ""};
  for (const auto& access : {Access::kUser, Access::kAdmin}) {
    EXPECT_EQ(CheckAccess(options, access, With({})), Verdict::kNoKey);
    EXPECT_EQ(CheckAccess(options, access, With({{"authorization", "Bearer two"}})),
              Verdict::kAllowed);
    EXPECT_EQ(CheckAccess(options, access, With({{"authorization", "bearer  one"}})),
              Verdict::kAllowed);
    EXPECT_EQ(CheckAccess(options, access, With({{"x-api-key", "one"}})), Verdict::kAllowed);
    EXPECT_EQ(CheckAccess(options, access, With({{"authorization", "Basic one"}})),
              Verdict::kNoKey);
    // A client, or a gateway before it, may send both headers.
    EXPECT_EQ(CheckAccess(options, access,
                          With({{"authorization", "Bearer other"}, {"x-api-key", "one"}})),
              Verdict::kAllowed);
    EXPECT_EQ(CheckAccess(options, access,
                          With({{"authorization", "Bearer one"}, {"x-api-key", "other"}})),
              Verdict::kAllowed);
    EXPECT_EQ(
        CheckAccess(options, access, With({{"authorization", "Bearer x"}, {"x-api-key", "other"}})),
        Verdict::kNoKey);
  }
  EXPECT_EQ(CheckAccess(options, Access::kPublic, With({})), Verdict::kAllowed);
}

TEST(Access, AdminRoutesTakeTheAdminKeyIfThereIsOne) {
  const AccessOptions options{.api_keys = {"user"}, .admin_key = "root"};
  EXPECT_EQ(CheckAccess(options, Access::kAdmin, With({{"x-api-key", "user"}})), Verdict::kNoKey);
  EXPECT_EQ(CheckAccess(options, Access::kAdmin, With({{"x-api-key", "root"}})), Verdict::kAllowed);
  EXPECT_EQ(CheckAccess(options, Access::kUser, With({{"x-api-key", "root"}})), Verdict::kNoKey);
}

TEST(Access, WithoutKeysAdminRoutesAreForThisMachineAlone) {
  const AccessOptions options;
  auto verdict = [&](HttpHeaders headers, bool loopback = true) {
    return CheckAccess(options, Access::kAdmin, With(std::move(headers), loopback));
  };
  EXPECT_EQ(verdict({{"host", "localhost:8080"}}), Verdict::kAllowed);
  EXPECT_EQ(verdict({{"host", "127.0.0.1:8080"}}), Verdict::kAllowed);
  EXPECT_EQ(verdict({{"host", "[::1]:8080"}}), Verdict::kAllowed);
  EXPECT_EQ(verdict({{"host", "localhost:8080"}}, false), Verdict::kNotLocal);
  EXPECT_EQ(verdict({{"host", "evil.test"}}), Verdict::kNotLocal);
  EXPECT_EQ(verdict({{"host", "localhost:8080"}, {"origin", "http://localhost:8080"}}),
            Verdict::kAllowed);
  for (const char* origin : {"http://evil.test", "http://localhost:9090", "null"})
    EXPECT_EQ(verdict({{"host", "localhost:8080"}, {"origin", origin}}), Verdict::kNotLocal)
        << origin;
}

}  // namespace
}  // namespace cairn
