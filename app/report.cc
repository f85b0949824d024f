#include "report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "server/openai_json.h"

namespace cairn {
namespace {

std::string Show(const std::string& v) { return QuoteJson(v); }
std::string Show(int64_t v) { return std::to_string(v); }
std::string Show(bool v) { return v ? "true" : "false"; }
// JSON has neither infinity nor NaN.
std::string Show(double v) { return std::isfinite(v) ? fmt::format("{}", v) : "null"; }
std::string Show(const std::vector<std::pair<std::string, double>>& v) {
  std::string text;
  for (const auto& [key, number] : v) {
    text += (text.empty() ? "" : ", ") + QuoteJson(key) + ": " + Show(number);
  }
  return "{" + text + "}";
}

std::string ToJson(const Report::Value& value) {
  return std::visit([](const auto& v) { return Show(v); }, value);
}

}  // namespace

void Report::Add(std::string key, Value value, std::string label, std::string text) {
  if (text.empty()) {
    const auto* plain = std::get_if<std::string>(&value);
    text = plain != nullptr ? *plain : ToJson(value);
  }
  rows_.push_back({std::move(key), std::move(label), std::move(text), std::move(value)});
}

void Report::PrintTable() const {
  size_t width = 0;
  for (const Row& row : rows_) width = std::max(width, row.label.size());
  for (const Row& row : rows_)
    std::printf("%-*s  %s\n", static_cast<int>(width), row.label.c_str(), row.text.c_str());
}

void Report::PrintJson() const {
  std::string text;
  for (const Row& row : rows_) {
    text += (text.empty() ? "" : ", ") + QuoteJson(row.key) + ": " + ToJson(row.value);
  }
  std::printf("{%s}\n", text.c_str());
}

}  // namespace cairn
