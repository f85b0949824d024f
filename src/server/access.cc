#include "server/access.h"

#include <algorithm>
#include <cctype>

namespace cairn {
namespace {

constexpr std::string_view kBearer = "bearer ";

bool BeginsWithIgnoringCase(std::string_view text, std::string_view prefix) {
  return text.size() >= prefix.size() &&
         std::equal(prefix.begin(), prefix.end(), text.begin(), [](char p, char t) {
           return p == std::tolower(static_cast<unsigned char>(t));
         });
}

bool HasKey(const std::vector<std::string>& keys, const HttpRequest& request) {
  bool found = false;  // looks at all keys, so that the time does not tell which one was close
  for (const std::string_view given : {GivenKey(request), request.Header("x-api-key")})
    for (const std::string& key : keys) found |= SameSecret(given, key);
  return found;
}

// The host without its port.
std::string_view HostName(std::string_view host) {
  if (!host.empty() && host.front() == '[') return host.substr(0, host.find(']') + 1);
  return host.substr(0, host.find(':'));
}

// A page of another site may make a browser of this machine send requests here; its requests carry
// the site's origin, or, where its name was bound to this machine, the site's host.
bool IsLocal(const HttpRequest& request) {
  if (!request.from_loopback) return false;
  const std::string_view host = request.Header("host");
  const std::string_view name = HostName(host);
  if (!name.empty() && name != "localhost" && name != "[::1]" && !name.starts_with("127."))
    return false;
  const std::string_view origin = request.Header("origin");
  const size_t scheme = origin.find("://");
  return origin.empty() || (scheme != std::string_view::npos && origin.substr(scheme + 3) == host);
}

}  // namespace

std::string_view GivenKey(const HttpRequest& request) {
  const std::string_view authorization = request.Header("authorization");
  if (BeginsWithIgnoringCase(authorization, kBearer)) {
    std::string_view key = authorization.substr(kBearer.size());
    while (!key.empty() && key.front() == ' ') key.remove_prefix(1);
    return key;
  }
  return request.Header("x-api-key");
}

bool SameSecret(std::string_view given, std::string_view key) {
  unsigned difference = given.size() == key.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i) {
    const char expected = key.empty() ? '\0' : key[i % key.size()];
    difference |= static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(expected);
  }
  return difference == 0 && !key.empty();
}

Verdict CheckAccess(const AccessOptions& options, Access access, const HttpRequest& request) {
  if (access == Access::kPublic) return Verdict::kAllowed;
  if (access == Access::kAdmin && !options.admin_key.empty())
    return HasKey({options.admin_key}, request) ? Verdict::kAllowed : Verdict::kNoKey;
  if (!options.api_keys.empty())
    return HasKey(options.api_keys, request) ? Verdict::kAllowed : Verdict::kNoKey;
  if (access == Access::kUser || IsLocal(request)) return Verdict::kAllowed;
  return Verdict::kNotLocal;
}

HttpHeaders CorsHeaders(const AccessOptions& options, std::string_view origin) {
  const auto& allowed = options.allowed_origins;
  if (std::find(allowed.begin(), allowed.end(), "*") != allowed.end())
    return {{"Access-Control-Allow-Origin", "*"}};
  HttpHeaders headers = {{"Vary", "Origin"}};
  if (!origin.empty() && std::find(allowed.begin(), allowed.end(), origin) != allowed.end())
    headers.emplace_back("Access-Control-Allow-Origin", std::string(origin));
  return headers;
}

HttpHeaders PreflightHeaders(const HttpRequest& request) {
  const std::string_view wanted = request.Header("access-control-request-headers");
  return {{"Access-Control-Allow-Methods", "GET, HEAD, POST, DELETE, OPTIONS"},
          {"Access-Control-Allow-Headers",
           wanted.empty() ? "Authorization, Content-Type, x-api-key" : std::string(wanted)},
          {"Access-Control-Max-Age", "600"}};
}

}  // namespace cairn
