#include "report.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace cairn {
namespace {

using Json = nlohmann::ordered_json;

// Invalid UTF-8 (from a hostile file) becomes U+FFFD.
std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json ToJson(const Report::Value& value) {
  return std::visit(
      [](const auto& v) -> Json {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, std::vector<std::pair<std::string, double>>>) {
          Json object = Json::object();
          for (const auto& [key, number] : v) object[key] = number;
          return object;
        } else {
          return v;
        }
      },
      value);
}

}  // namespace

void Report::Add(std::string key, Value value, std::string label, std::string text) {
  if (text.empty()) {
    const Json json = ToJson(value);
    text = json.is_string() ? json.get<std::string>() : Dump(json);
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
  Json object = Json::object();
  for (const Row& row : rows_) object[row.key] = ToJson(row.value);
  std::printf("%s\n", Dump(object).c_str());
}

std::string JsonString(const std::string& s) { return Dump(Json(s)); }

}  // namespace cairn
