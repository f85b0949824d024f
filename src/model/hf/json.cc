#include "model/hf/json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/bytes.h"

namespace cairn {

std::optional<bool> JsonValue::AsBool() const {
  if (kind_ != Kind::kBool) return std::nullopt;
  return bool_;
}

std::optional<int64_t> JsonValue::AsInteger() const {
  if (kind_ == Kind::kInteger) return integer_;
  // Some writers say 1e6 or 128.0.
  if (kind_ == Kind::kNumber && std::abs(number_) < 9e15 && std::floor(number_) == number_)
    return static_cast<int64_t>(number_);
  return std::nullopt;
}

std::optional<double> JsonValue::AsNumber() const {
  if (kind_ == Kind::kInteger) return static_cast<double>(integer_);
  if (kind_ == Kind::kNumber) return number_;
  return std::nullopt;
}

std::optional<std::string_view> JsonValue::AsString() const {
  if (kind_ != Kind::kString) return std::nullopt;
  return string_;
}

const JsonValue* JsonValue::Find(std::string_view key) const {
  for (const Member& member : members_) {
    if (member.first == key) return &member.second;
  }
  return nullptr;
}

std::string JsonValue::Describe() const {
  switch (kind_) {
    case Kind::kNull:
      return "null";
    case Kind::kBool:
      return bool_ ? "true" : "false";
    case Kind::kInteger:
      return std::to_string(integer_);
    case Kind::kNumber:
      return std::to_string(number_);
    case Kind::kString:
      return QuoteForMessage(string_);
    case Kind::kArray:
      return "an array";
    case Kind::kObject:
      return "an object";
  }
  return "nothing";
}

class JsonParser {
 public:
  JsonParser(std::string_view text, std::string_view what, const JsonLimits& limits)
      : text_(text), what_(what), limits_(limits) {}

  Result<JsonValue> Parse() {
    if (text_.size() > limits_.text_bytes_max) {
      return ResourceExhausted("[json] " + what_ + ": got " + std::to_string(text_.size()) +
                               " bytes, wanted at most " + std::to_string(limits_.text_bytes_max));
    }
    JsonValue value;
    SkipSpace();
    RETURN_IF_ERROR(ParseValue(&value, 0));
    SkipSpace();
    if (at_ != text_.size()) return Broken("text after the value");
    return value;
  }

 private:
  Status Broken(const std::string& problem) const {
    return DataLoss("[json] " + what_ + ": " + problem + " at byte " + std::to_string(at_));
  }
  Status TooMuch(const std::string& problem) const {
    return ResourceExhausted("[json] " + what_ + ": " + problem);
  }

  void SkipSpace() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r')) {
      ++at_;
    }
  }
  bool Take(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool TakeWord(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  Status ParseValue(JsonValue* out, int depth) {
    if (++values_ > limits_.values_max) {
      return TooMuch("more than " + std::to_string(limits_.values_max) + " values");
    }
    if (depth > limits_.depth_max) {
      return TooMuch("nested deeper than " + std::to_string(limits_.depth_max));
    }
    if (at_ >= text_.size()) return Broken("the text ends");
    const char c = text_[at_];
    if (c == '{') return ParseObject(out, depth);
    if (c == '[') return ParseArray(out, depth);
    if (c == '"') {
      out->kind_ = JsonValue::Kind::kString;
      return ParseString(&out->string_);
    }
    if (TakeWord("null")) return {};
    if (TakeWord("true") || TakeWord("false")) {
      out->kind_ = JsonValue::Kind::kBool;
      out->bool_ = c == 't';
      return {};
    }
    return ParseNumber(out);
  }

  Status ParseObject(JsonValue* out, int depth) {
    out->kind_ = JsonValue::Kind::kObject;
    ++at_;
    SkipSpace();
    if (Take('}')) return {};
    do {
      SkipSpace();
      if (at_ >= text_.size() || text_[at_] != '"') return Broken("no key");
      JsonValue::Member& member = out->members_.emplace_back();
      RETURN_IF_ERROR(ParseString(&member.first));
      SkipSpace();
      if (!Take(':')) return Broken("no ':'");
      SkipSpace();
      RETURN_IF_ERROR(ParseValue(&member.second, depth + 1));
      SkipSpace();
    } while (Take(','));
    if (!Take('}')) return Broken("no '}'");
    return CheckKeys(*out);
  }

  Status CheckKeys(const JsonValue& object) const {
    std::vector<std::string_view> keys;
    for (const JsonValue::Member& member : object.members_) keys.push_back(member.first);
    std::sort(keys.begin(), keys.end());
    const auto twice = std::adjacent_find(keys.begin(), keys.end());
    if (twice == keys.end()) return {};
    return DataLoss("[json] " + what_ + ": got " + QuoteForMessage(*twice) + " twice");
  }

  Status ParseArray(JsonValue* out, int depth) {
    out->kind_ = JsonValue::Kind::kArray;
    ++at_;
    SkipSpace();
    if (Take(']')) return {};
    do {
      SkipSpace();
      RETURN_IF_ERROR(ParseValue(&out->elements_.emplace_back(), depth + 1));
      SkipSpace();
    } while (Take(','));
    if (!Take(']')) return Broken("no ']'");
    return {};
  }

  Status ParseString(std::string* out) {
    ++at_;
    while (true) {
      if (at_ >= text_.size()) return Broken("a string without end");
      const char c = text_[at_++];
      if (c == '"') return {};
      if (static_cast<unsigned char>(c) < 0x20) return Broken("a control character in a string");
      if (c != '\\') {
        out->push_back(c);
        continue;
      }
      RETURN_IF_ERROR(ParseEscape(out));
    }
  }

  Status ParseEscape(std::string* out) {
    static constexpr std::string_view kNames = "\"\\/bfnrt";
    static constexpr std::string_view kBytes = "\"\\/\b\f\n\r\t";
    if (at_ >= text_.size()) return Broken("a string without end");
    const char c = text_[at_++];
    if (const size_t i = kNames.find(c); i != std::string_view::npos) {
      out->push_back(kBytes[i]);
      return {};
    }
    if (c != 'u') return Broken("an unknown escape");
    uint32_t code = 0;
    RETURN_IF_ERROR(ParseHex(&code));
    if (code >= 0xd800 && code < 0xdc00 && TakeWord("\\u")) {
      uint32_t low = 0;
      RETURN_IF_ERROR(ParseHex(&low));
      if (low < 0xdc00 || low > 0xdfff) return Broken("half a surrogate pair");
      code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    } else if (code >= 0xd800 && code < 0xe000) {
      return Broken("half a surrogate pair");
    }
    AppendUtf8(code, out);
    return {};
  }

  Status ParseHex(uint32_t* code) {
    const std::string_view digits = text_.substr(at_, 4);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), *code,
                                              /*base=*/16);
    if (digits.size() != 4 || error != std::errc() || end != digits.data() + 4)
      return Broken("a broken \\u escape");
    at_ += 4;
    return {};
  }

  static void AppendUtf8(uint32_t code, std::string* out) {
    const auto tail = [&](int shift) {
      out->push_back(static_cast<char>(0x80 | (code >> shift & 0x3f)));
    };
    if (code < 0x80) {
      out->push_back(static_cast<char>(code));
    } else if (code < 0x800) {
      out->push_back(static_cast<char>(0xc0 | code >> 6));
      tail(0);
    } else if (code < 0x10000) {
      out->push_back(static_cast<char>(0xe0 | code >> 12));
      tail(6);
      tail(0);
    } else {
      out->push_back(static_cast<char>(0xf0 | code >> 18));
      tail(12);
      tail(6);
      tail(0);
    }
  }

  Status ParseNumber(JsonValue* out) {
    out->kind_ = JsonValue::Kind::kNumber;
    const double infinity = std::numeric_limits<double>::infinity();
    if (TakeWord("NaN")) {
      out->number_ = std::numeric_limits<double>::quiet_NaN();
      return {};
    }
    if (TakeWord("Infinity")) {
      out->number_ = infinity;
      return {};
    }
    if (TakeWord("-Infinity")) {
      out->number_ = -infinity;
      return {};
    }
    const size_t begin = at_;
    while (at_ < text_.size() &&
           std::string_view("+-.0123456789eE").find(text_[at_]) != std::string_view::npos) {
      ++at_;
    }
    const std::string_view literal = text_.substr(begin, at_ - begin);
    const size_t digits = literal.starts_with('-') ? 1 : 0;
    if (literal.size() <= digits || literal.back() < '0' || literal.back() > '9' ||
        literal[digits] < '0' || literal[digits] > '9' ||
        (literal[digits] == '0' && literal.size() > digits + 1 && literal[digits + 1] >= '0' &&
         literal[digits + 1] <= '9')) {
      at_ = begin;
      return Broken("no value");
    }
    const char* last = literal.data() + literal.size();
    if (literal.find_first_of(".eE") == std::string_view::npos) {
      const auto [end, error] = std::from_chars(literal.data(), last, out->integer_);
      if (error == std::errc() && end == last) {
        out->kind_ = JsonValue::Kind::kInteger;
        return {};
      }
    }
    const auto [end, error] = std::from_chars(literal.data(), last, out->number_);
    if (error != std::errc() || end != last) {
      at_ = begin;
      return Broken("a broken number");
    }
    return {};
  }

  const std::string_view text_;
  const std::string what_;
  const JsonLimits limits_;
  size_t at_ = 0;
  uint64_t values_ = 0;
};

Result<JsonValue> ParseJson(std::string_view text, std::string_view what,
                            const JsonLimits& limits) {
  return JsonParser(text, what, limits).Parse();
}

}  // namespace cairn
