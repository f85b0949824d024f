// Errors as values. A function that can fail for reasons outside the program (user, file, network,
// limit) returns Status or Result<T>; CHECK (check.h) is for our own mistakes only. Messages read
// "[module] what, got, wanted". Threads: values, freely copied between threads.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "base/check.h"

namespace cairn {

enum class StatusCode {
  kOk,
  kInvalidArgument,    // the caller's input is wrong (HTTP 400, exit 2)
  kNotFound,           // no such file, route, id
  kUnsupported,        // understood, but not in this version
  kDataLoss,           // a file is broken, truncated or hostile
  kResourceExhausted,  // a limit or budget is reached; may succeed later
  kContextLength,      // the prompt does not fit the context
  kUnavailable,        // shutting down or not ready
  kCancelled,
  kDeadlineExceeded,
  kInternal,  // our own fault, or the machine's
};

const char* StatusCodeName(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;  // ok
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  std::string ToString() const;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

inline Status InvalidArgument(std::string m) {
  return {StatusCode::kInvalidArgument, std::move(m)};
}
inline Status NotFound(std::string m) { return {StatusCode::kNotFound, std::move(m)}; }
inline Status Unsupported(std::string m) { return {StatusCode::kUnsupported, std::move(m)}; }
inline Status DataLoss(std::string m) { return {StatusCode::kDataLoss, std::move(m)}; }
inline Status ResourceExhausted(std::string m) {
  return {StatusCode::kResourceExhausted, std::move(m)};
}
inline Status Unavailable(std::string m) { return {StatusCode::kUnavailable, std::move(m)}; }
inline Status Internal(std::string m) { return {StatusCode::kInternal, std::move(m)}; }

// A value or the reason there is none. REQUIRES: value() only if ok().
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT: implicit by design
  Result(Status status) : status_(std::move(status)) {  // NOLINT: implicit by design
    CHECK(!status_.ok());
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & {
    CHECK(ok());
    return *value_;
  }
  const T& value() const& {
    CHECK(ok());
    return *value_;
  }
  T&& value() && {
    CHECK(ok());
    return std::move(*value_);
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  Status status_;
  std::optional<T> value_;
};

}  // namespace cairn

#define CAIRN_CONCAT_INNER(a, b) a##b
#define CAIRN_CONCAT(a, b) CAIRN_CONCAT_INNER(a, b)
#define RETURN_IF_ERROR(expr)                                \
  do {                                                       \
    ::cairn::Status status_macro_value = (expr);             \
    if (!status_macro_value.ok()) return status_macro_value; \
  } while (0)
#define ASSIGN_OR_RETURN(lhs, expr) \
  ASSIGN_OR_RETURN_INNER(CAIRN_CONCAT(result_macro_, __LINE__), lhs, expr)
#define ASSIGN_OR_RETURN_INNER(tmp, lhs, expr) \
  auto tmp = (expr);                           \
  if (!tmp.ok()) return tmp.status();          \
  lhs = std::move(tmp).value()
