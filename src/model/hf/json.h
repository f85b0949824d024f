// JSON as model directories hold it: config.json, safetensors headers, index files. A small strict
// reader with limits, so that a hostile file costs no more than it weighs.
//
// Beyond the standard it takes NaN, Infinity and -Infinity, which Python writes. A key that occurs
// twice in an object is an error.
//
// Threads: values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace cairn {

struct JsonLimits {
  uint64_t text_bytes_max = 128ull << 20;
  uint64_t values_max = 2 << 20;
  int depth_max = 32;
};

class JsonValue {
 public:
  enum class Kind { kNull, kBool, kInteger, kNumber, kString, kArray, kObject };
  using Member = std::pair<std::string, JsonValue>;

  Kind kind() const { return kind_; }
  bool is_null() const { return kind_ == Kind::kNull; }
  bool is_object() const { return kind_ == Kind::kObject; }
  bool is_array() const { return kind_ == Kind::kArray; }
  bool is_string() const { return kind_ == Kind::kString; }

  // The value, if it is of this kind. AsNumber takes integers too; AsInteger no fractions.
  std::optional<bool> AsBool() const;
  std::optional<int64_t> AsInteger() const;
  std::optional<double> AsNumber() const;
  std::optional<std::string_view> AsString() const;
  const std::vector<JsonValue>& elements() const { return elements_; }  // of an array
  const std::vector<Member>& members() const { return members_; }       // of an object, in order
  // Member of an object; null if this is no object, or has none of this name.
  const JsonValue* Find(std::string_view key) const;
  // For messages: "an object", "the string 'abc'", "12".
  std::string Describe() const;

 private:
  friend class JsonParser;
  Kind kind_ = Kind::kNull;
  bool bool_ = false;
  int64_t integer_ = 0;
  double number_ = 0;
  std::string string_;
  std::vector<JsonValue> elements_;
  std::vector<Member> members_;
};

// `what` begins the messages: "config.json". Errors: DataLoss with the byte, ResourceExhausted.
Result<JsonValue> ParseJson(std::string_view text, std::string_view what,
                            const JsonLimits& limits = {});

}  // namespace cairn
