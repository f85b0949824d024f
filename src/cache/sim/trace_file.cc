#include "cache/sim/trace_file.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <limits>
#include <unordered_map>

namespace cairn {
namespace {

constexpr size_t kLineBytesMax = 64 << 20;
constexpr size_t kRequestsMax = 1 << 20;
constexpr int64_t kRequestTokensMax = 1 << 22;
constexpr int kDepthMax = 32;

// As much of JSON as a trace needs.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  bool Take(char c) {
    SkipSpace();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool AtEnd() {
    SkipSpace();
    return at_ == text_.size();
  }
  template <typename T>
  bool Number(T& value) {
    SkipSpace();
    const auto [end, error] =
        std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
    if (error != std::errc()) return false;
    at_ = static_cast<size_t>(end - text_.data());
    return true;
  }
  // Escapes stay as they are: keys have none, and salts are only compared.
  bool String(std::string& value) {
    if (!Take('"')) return false;
    const size_t begin = at_;
    for (; at_ < text_.size() && text_[at_] != '"'; ++at_) at_ += text_[at_] == '\\';
    if (at_ >= text_.size()) return false;
    value = text_.substr(begin, at_++ - begin);
    return true;
  }
  template <typename Fn>
  bool Array(Fn element) {
    if (!Take('[')) return false;
    if (Take(']')) return true;
    do {
      if (!element()) return false;
    } while (Take(','));
    return Take(']');
  }
  template <typename Fn>
  bool Object(Fn member) {
    if (!Take('{')) return false;
    if (Take('}')) return true;
    do {
      std::string key;
      if (!String(key) || !Take(':') || !member(key)) return false;
    } while (Take(','));
    return Take('}');
  }
  bool Skip(int depth = 0) {
    SkipSpace();
    if (at_ == text_.size() || depth > kDepthMax) return false;
    std::string ignored;
    switch (text_[at_]) {
      case '[':
        return Array([&] { return Skip(depth + 1); });
      case '{':
        return Object([&](const std::string&) { return Skip(depth + 1); });
      case '"':
        return String(ignored);
      default: {
        const size_t end = std::min(text_.find_first_of(",]} \t", at_), text_.size());
        const bool some = end > at_;
        at_ = end;
        return some;
      }
    }
  }

 private:
  void SkipSpace() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\r')) {
      ++at_;
    }
  }

  std::string_view text_;
  size_t at_ = 0;
};

bool ReadTokens(Scanner& in, std::vector<Token>& tokens) {
  return in.Array([&] {
    Token token = 0;
    if (!in.Number(token) || token < 0) return false;
    tokens.push_back(token);
    return static_cast<int64_t>(tokens.size()) <= kRequestTokensMax;
  });
}

bool ReadSegments(Scanner& in, std::vector<Segment>& segments) {
  int64_t total = 0;
  return in.Array([&] {
    std::vector<uint64_t> fields;
    const bool read = in.Array([&] {
      fields.emplace_back();
      return in.Number(fields.back());
    });
    if (!read || fields.size() < 2 || fields.size() > 3) return false;
    if (fields[1] > static_cast<uint64_t>(kRequestTokensMax)) return false;
    const bool is_turn = fields.size() == 3 && fields[2] != 0;
    segments.push_back({fields[0], static_cast<int64_t>(fields[1]), is_turn});
    total += segments.back().length;
    return total <= kRequestTokensMax;
  });
}

struct Line {
  TraceRequest request;
  int64_t output = 0;  // tokens whose ids are to be found
};

bool ReadMember(Scanner& in, const std::string& key, Line& line) {
  TraceRequest& r = line.request;
  if (key == "t") return in.Number(r.time);
  if (key == "tokens") return ReadTokens(in, r.prompt_tokens);
  if (key == "segments") return ReadSegments(in, r.prompt);
  if (key == "output_tokens") return ReadTokens(in, r.output_tokens);
  if (key == "output_segments") return ReadSegments(in, r.output);
  if (key == "salt") return in.String(r.salt);
  if (key == "output") {
    return in.Number(line.output) && line.output >= 0 && line.output <= kRequestTokensMax;
  }
  if (key == "turns") {
    return in.Array([&] {
      r.turn_starts.emplace_back();
      return in.Number(r.turn_starts.back());
    });
  }
  return in.Skip();
}

const char* Wrong(const Line& line, double time) {
  const TraceRequest& r = line.request;
  const int64_t n = PromptLength(r);
  if (n == 0) return "no prompt, wanted tokens or segments";
  if (!r.prompt.empty() && !r.prompt_tokens.empty()) return "both tokens and segments";
  if (!(r.time >= time)) return "t goes back";
  if (!std::is_sorted(r.turn_starts.begin(), r.turn_starts.end())) return "turns not ascending";
  if (!r.turn_starts.empty() && (r.turn_starts.front() < 0 || r.turn_starts.back() >= n)) {
    return "turns outside the prompt";
  }
  return nullptr;
}

// Gives each answer the tokens with which the first later prompt goes on.
void FindOutputs(std::vector<Line>& lines) {
  std::unordered_multimap<uint64_t, size_t> open;  // by hash of the prompt
  for (size_t j = 0; j < lines.size(); ++j) {
    const std::vector<Token> tokens = Tokenize(lines[j].request).tokens;
    const int64_t n = PromptLength(lines[j].request);
    uint64_t hash = 0;
    for (int64_t p = 0; p < n; ++p) {
      for (auto [it, end] = open.equal_range(hash); it != end;) {
        Line& line = lines[it->second];
        if (PromptLength(line.request) != p || line.request.salt != lines[j].request.salt) {
          ++it;
          continue;
        }
        const int64_t count = std::min(line.output, n - p);
        line.request.output_tokens.assign(tokens.begin() + p, tokens.begin() + p + count);
        line.output -= count;
        it = open.erase(it);
      }
      hash = ExtendHash(hash, tokens[p]);
    }
    const bool given = !lines[j].request.output.empty() || !lines[j].request.output_tokens.empty();
    if (given) lines[j].output = 0;
    if (lines[j].output > 0) open.emplace(hash, j);
  }
  for (size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].output == 0) continue;
    // Behind what was found, if anything: text that nobody else has.
    lines[i].request.output.push_back({(uint64_t{1} << 62) + i, lines[i].output});
  }
}

}  // namespace

Result<Trace> ReadTraceFile(const std::string& path) {
  std::error_code ec;
  if (!std::filesystem::is_regular_file(path, ec))  // not a directory, nor a device without end
    return NotFound("[trace] " + path + ": no file");
  std::ifstream in(path);
  if (!in) return NotFound("[trace] " + path + ": cannot be read");
  std::vector<Line> lines;
  double time = -std::numeric_limits<double>::infinity();
  int64_t number = 0;
  for (std::string text; std::getline(in, text);) {
    ++number;
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    const auto broken = [&](const std::string& what) {
      return DataLoss("[trace] " + path + ":" + std::to_string(number) + ": " + what);
    };
    if (text.size() > kLineBytesMax) return broken("line too long");
    if (lines.size() == kRequestsMax) return broken("too many requests");
    Line line;
    Scanner scanner(text);
    const bool read = scanner.Object([&](const std::string& key) {
      return ReadMember(scanner, key, line);
    }) && scanner.AtEnd();
    if (!read) return broken("not a request");
    if (const char* wrong = Wrong(line, time)) return broken(wrong);
    time = line.request.time;
    lines.push_back(std::move(line));
  }
  FindOutputs(lines);
  Trace trace{path.substr(path.find_last_of('/') + 1), {}};
  for (Line& line : lines) trace.requests.push_back(std::move(line.request));
  return trace;
}

}  // namespace cairn
