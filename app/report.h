// What a subcommand has found, as rows: printed as a table for people or as one JSON object for
// programs.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace cairn {

class Report {
 public:
  using Value =
      std::variant<std::string, int64_t, double, bool, std::vector<std::pair<std::string, double>>>;
  // `text`: the value for people; empty: the value itself.
  void Add(std::string key, Value value, std::string label, std::string text = "");

  void PrintTable() const;  // "label   text" lines on standard output
  void PrintJson() const;   // {"key": value, ...} on standard output

 private:
  struct Row {
    std::string key, label, text;
    Value value;
  };
  std::vector<Row> rows_;
};

}  // namespace cairn
