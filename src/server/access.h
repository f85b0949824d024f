// Who may call: keys, and which origins a browser may call from. Pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/http_server.h"

namespace cairn {

struct AccessOptions {
  std::vector<std::string> api_keys;              // empty: everyone
  std::string admin_key;                          // empty: the API keys
  std::vector<std::string> allowed_origins{"*"};  // "*": any
};

enum class Access {
  kPublic,
  kUser,   // an API key, if there are any
  kAdmin,  // sees prompts: the admin key, or an API key, or a local client if there are no keys
};

enum class Verdict { kAllowed, kNoKey, kNotLocal };

Verdict CheckAccess(const AccessOptions& options, Access access, const HttpRequest& request);

// Access-Control-* for a reply to a request with this Origin.
HttpHeaders CorsHeaders(const AccessOptions& options, std::string_view origin);
// And those of a reply to OPTIONS.
HttpHeaders PreflightHeaders(const HttpRequest& request);

// Takes the same time for every wrong key of one length.
bool SameSecret(std::string_view given, std::string_view key);
// The key that a request brings, right or wrong; empty if it brings none. Valid as long as
// `request`.
std::string_view GivenKey(const HttpRequest& request);

}  // namespace cairn
