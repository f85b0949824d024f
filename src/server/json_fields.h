// A JSON body under limits, and typed access to its fields. Included by openai_parse.cc alone, so
// that one translation unit parses JSON. Threads: pure functions and values.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "server/openai_json.h"

namespace cairn {

using Json = nlohmann::ordered_json;

inline constexpr int kDepthMax = 128;
// ordered_json looks at all earlier keys of an object for each new one.
inline constexpr int kKeysMax = 4096;                            // of one object
inline constexpr int64_t kKeyComparisonsMax = int64_t{1} << 25;  // of all objects
inline constexpr int kValuesMax = 1'000'000;

inline ApiError BadField(std::string param, const std::string& message) {
  ApiError error;
  error.message = param + ": " + message;
  error.param = std::move(param);
  return error;
}

inline ApiError UnsupportedField(std::string param,
                                 const std::string& message = "not in this version") {
  ApiError error = BadField(std::move(param), message);
  error.code = "unsupported";
  return error;
}

// Counts while it parses, and refuses a body that is too deep, too wide or too long before anything
// is built.
class LimitFilter : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return Value(); }
  bool boolean(bool) override { return Value(); }
  bool number_integer(number_integer_t) override { return Value(); }
  bool number_unsigned(number_unsigned_t) override { return Value(); }
  bool number_float(number_float_t, const string_t&) override { return Value(); }
  bool string(string_t&) override { return Value(); }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return Open(); }
  bool start_array(size_t) override { return Open(); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(string_t&) override {
    if (++keys_[depth_] > kKeysMax)
      return Fail("more than " + std::to_string(kKeysMax) + " keys in one object");
    comparisons_ += keys_[depth_];
    if (comparisons_ > kKeyComparisonsMax) return Fail("too many large objects");
    return true;
  }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return Fail("not valid JSON (in UTF-8) at byte " + std::to_string(position));
  }

  const std::string& problem() const { return problem_; }

 private:
  bool Value() {
    if (++values_ > kValuesMax) return Fail("more than " + std::to_string(kValuesMax) + " values");
    return true;
  }
  bool Open() {
    if (++depth_ > kDepthMax) return Fail("nested deeper than " + std::to_string(kDepthMax));
    keys_[depth_] = 0;
    return Value();
  }
  bool Close() {
    --depth_;
    return true;
  }
  bool Fail(std::string problem) {
    problem_ = std::move(problem);
    return false;
  }

  std::array<int, kDepthMax + 2> keys_{};
  int depth_ = 0;
  int values_ = 0;
  int64_t comparisons_ = 0;
  std::string problem_;
};

inline Parsed<Json> ParseObject(std::string_view body) {
  auto refuse = [](const std::string& what) {
    ApiError error;
    error.message = "request body: " + what;
    return Parsed<Json>{std::nullopt, std::move(error)};
  };
  if (body.find_first_not_of(" \t\r\n") == std::string_view::npos)
    return refuse("empty, wanted a JSON object");
  // The parser takes a NUL for the end of its input.
  if (const size_t nul = body.find('\0'); nul != std::string_view::npos)
    return refuse("not valid JSON (in UTF-8) at byte " + std::to_string(nul + 1));
  LimitFilter filter;
  if (!Json::sax_parse(body, &filter))
    return refuse(filter.problem().empty() ? "not valid JSON" : filter.problem());
  Json json = Json::parse(body, nullptr, false);
  if (!json.is_object())
    return refuse(std::string("got ") + json.type_name() + ", wanted a JSON object");
  return {std::move(json), {}};
}

// Typed access to one object's fields. null counts as absent. The first wrong field is kept as the
// error; what comes later changes nothing.
class Fields {
 public:
  explicit Fields(const Json& object) : object_(object) {}

  const Json* Find(const char* name) const {
    const auto it = object_.find(name);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }
  bool Bool(const char* name, bool fallback) {
    const Json* v = Find(name);
    if (v == nullptr) return fallback;
    if (!v->is_boolean()) Wrong(name, *v, "true or false");
    return v->is_boolean() && v->get<bool>();
  }
  std::optional<double> Number(const char* name, double min, double max) {
    const Json* v = Find(name);
    if (v == nullptr) return std::nullopt;
    if (!v->is_number()) return Wrong(name, *v, "a number"), std::nullopt;
    const double x = v->get<double>();
    if (!(x >= min && x <= max))
      return Wrong(name, *v, "a number from " + Show(min) + " to " + Show(max)), std::nullopt;
    return x;
  }
  // Integers may be written as 5 or 5.0.
  std::optional<int64_t> Integer(const char* name, int64_t min, int64_t max) {
    const Json* v = Find(name);
    if (v == nullptr) return std::nullopt;
    const std::optional<int64_t> x = ToInteger(*v);
    if (!x || *x < min || *x > max) {
      Wrong(name, *v, "an integer from " + std::to_string(min) + " to " + std::to_string(max));
      return std::nullopt;
    }
    return x;
  }
  std::optional<std::string> String(const char* name,
                                    size_t bytes_max = std::numeric_limits<size_t>::max()) {
    const Json* v = Find(name);
    if (v == nullptr) return std::nullopt;
    if (!v->is_string()) return Wrong(name, *v, "a string"), std::nullopt;
    const auto& s = v->get_ref<const std::string&>();
    if (s.size() > bytes_max)
      return Fail(BadField(name, "more than " + std::to_string(bytes_max) + " bytes")),
             std::nullopt;
    return s;
  }
  void Fail(ApiError error) {
    if (!error_) error_ = std::move(error);
  }
  void Wrong(const std::string& name, const Json& got, const std::string& wanted) {
    std::string shown =
        got.is_primitive() && !got.is_string() ? got.dump() : std::string(got.type_name());
    if (shown.size() > 40) shown.resize(40);
    Fail(BadField(name, "got " + shown + ", wanted " + wanted));
  }
  const std::optional<ApiError>& error() const { return error_; }

  static std::optional<int64_t> ToInteger(const Json& v) {
    if (v.is_number_unsigned()) {
      const uint64_t u = v.get<uint64_t>();
      return u <= static_cast<uint64_t>(INT64_MAX) ? std::optional<int64_t>(static_cast<int64_t>(u))
                                                   : std::nullopt;
    }
    if (v.is_number_integer()) return v.get<int64_t>();
    if (!v.is_number_float()) return std::nullopt;
    const double x = v.get<double>();
    if (x != std::floor(x) || std::fabs(x) > 9.0e15) return std::nullopt;
    return static_cast<int64_t>(x);
  }

 private:
  static std::string Show(double x) { return Json(x).dump(); }

  const Json& object_;
  std::optional<ApiError> error_;
};

inline std::string DumpJson(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace cairn
