// What the tests of this folder share: reading the fixtures in testdata/. Text in them is escaped
// (\\ \n \r \t \0), fields are separated by tabs, records by newlines.
#pragma once

#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "text/tokenizer.h"

namespace cairn::testing {

inline std::string TestDataPath(const std::string& name) { return "src/text/testdata/" + name; }

inline std::string ReadFileOrDie(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  CHECK(file.good());
  std::ostringstream out;
  out << file.rdbuf();
  return out.str();
}

inline std::string Unescape(std::string_view s) {
  std::string out;
  for (size_t i = 0; i < s.size(); ++i) {
    if (s[i] != '\\' || i + 1 == s.size()) {
      out += s[i];
      continue;
    }
    const char c = s[++i];
    out += c == 'n' ? '\n' : c == 'r' ? '\r' : c == 't' ? '\t' : c == '0' ? '\0' : c;
  }
  return out;
}

inline std::vector<std::string> Split(std::string_view s, char separator) {
  std::vector<std::string> parts;
  size_t start = 0;
  while (true) {
    const size_t end = s.find(separator, start);
    parts.emplace_back(s.substr(start, end - start));
    if (end == std::string_view::npos) return parts;
    start = end + 1;
  }
}

// The records of a file, each split into its (still escaped) fields.
inline std::vector<std::vector<std::string>> ReadRecords(const std::string& name) {
  std::vector<std::vector<std::string>> records;
  for (const std::string& line : Split(ReadFileOrDie(TestDataPath(name)), '\n')) {
    if (!line.empty()) records.push_back(Split(line, '\t'));
  }
  return records;
}

inline std::vector<Token> ParseIds(const std::string& text) {
  std::vector<Token> ids;
  std::istringstream in(text);
  for (Token id; in >> id;) ids.push_back(id);
  return ids;
}

// A vocabulary as GGUF metadata holds it.
inline TokenizerSpec ReadSpec(const std::string& name) {
  TokenizerSpec spec;
  for (const std::string& line : Split(ReadFileOrDie(TestDataPath(name)), '\n')) {
    const size_t space = line.find(' ');
    if (space == std::string::npos) continue;
    const std::string key = line.substr(0, space), value = line.substr(space + 1);
    if (key == "kind") spec.kind = ParseTokenizerKind(value).value();
    if (key == "pre") spec.pre = value;
    if (key == "bos") spec.bos = std::stoi(value);
    if (key == "eos") spec.eos = std::stoi(value);
    if (key == "unknown") spec.unknown = std::stoi(value);
    if (key == "add_bos_token") spec.add_bos = value == "1";
    if (key == "add_eos_token") spec.add_eos = value == "1";
    if (key == "add_space_prefix") spec.add_space_prefix = value == "1";
    if (key == "merge") spec.merges.push_back(Unescape(value));
    if (key == "token") {
      const size_t second = value.find(' '), third = value.find(' ', second + 1);
      spec.types.push_back(static_cast<TokenType>(std::stoi(value.substr(0, second))));
      spec.scores.push_back(std::stof(value.substr(second + 1, third - second - 1)));
      spec.tokens.push_back(Unescape(value.substr(third + 1)));
    }
  }
  if (spec.kind == TokenizerKind::kByteLevelBpe) spec.scores.clear();
  return spec;
}

inline Tokenizer LoadSpec(const std::string& name) {
  return Tokenizer::Create(ReadSpec(name)).value();
}

}  // namespace cairn::testing
