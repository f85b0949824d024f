#include "text/turn_headers.h"

#include <algorithm>
#include <string>
#include <string_view>

namespace cairn {

namespace {

// What stands at the beginning of a probe message. A header is what all of them have in common.
constexpr std::string_view kBeginnings[] = {"Zq", "1q", "\\n\\nq", " q", "(", "\xC3\xA9q"};

// Of a rendered probe; the messages themselves are a few dozen bytes. A template that writes more
// for them would cost minutes of tokenizing, and no header.
constexpr size_t kProbeBytesMax = size_t{64} << 10;

// Of a probe's rendering: about fifty times what the templates of today's models take.
constexpr uint64_t kProbeStepsMax = 200'000;

// A message's mark: found again in the rendered text.
std::string Needle(int number) {
  return "needle" + std::string(1, static_cast<char>('A' + number));
}

std::string Message(std::string_view role, std::string_view beginning, int number) {
  std::string json = "{\"role\":\"";
  json.append(role).append("\",\"content\":\"").append(beginning).append(Needle(number));
  return json + "\"}";
}

std::string ToolCall(int number) {
  return "{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"call00001\",\"type\":"
         "\"function\",\"function\":{\"name\":\"f\",\"arguments\":{\"k\":\"" +
         Needle(number) + "\"}}}]}";
}

std::string ToolResult(std::string_view beginning, int number) {
  std::string json = Message("tool", beginning, number);
  json.pop_back();
  return json + ",\"name\":\"f\",\"tool_call_id\":\"call00001\"}";
}

// A chat whose last header is wanted, for one beginning.
struct Probe {
  TurnRole role;
  std::vector<std::string> messages;
  bool is_tail;  // the header is the generation prompt's, not the last message's
  std::string kwargs;
};

std::vector<Probe> ProbesFor(std::string_view b) {
  const std::string system = Message("system", b, 0);
  const std::string user = Message("user", b, 1);
  const std::string assistant = Message("assistant", b, 2);
  const std::string user2 = Message("user", b, 3);
  return {{TurnRole::kUser, {user, assistant, user2}, false, ""},
          {TurnRole::kUser, {system, user}, false, ""},
          {TurnRole::kAssistant, {user, assistant}, false, ""},
          {TurnRole::kAssistant, {user}, true, ""},
          {TurnRole::kAssistant, {user}, true, "{\"enable_thinking\":true}"},
          {TurnRole::kAssistant, {user}, true, "{\"enable_thinking\":false}"},
          {TurnRole::kTool, {user, ToolCall(2), ToolResult(b, 3)}, false, ""},
          {TurnRole::kSystem, {system, user}, false, ""}};
}

class Learner {
 public:
  Learner(const ChatTemplate& chat_template, const Tokenizer& tokenizer)
      : template_(chat_template), tokenizer_(tokenizer) {}

  // Whether a probe ran out of steps or wrote too much: so would the others, each for seconds.
  bool gave_up() const { return gave_up_; }

  // The tokens from the end of the message before the header on, or empty.
  std::vector<Token> FromMessageBefore(const Probe& probe) {
    const std::optional<std::string> text = Render(probe.messages, probe.kwargs, probe.is_tail);
    if (!text) return {};
    const std::vector<size_t> ends = NeedleEnds(*text);
    std::string_view region = *text;
    if (probe.role == TurnRole::kSystem) {
      if (text->find(Needle(0)) == text->npos) return {};
    } else {
      const size_t from_last = probe.is_tail ? 1 : 2;
      if (ends.size() >= from_last) region.remove_prefix(ends[ends.size() - from_last]);
      // What closes a turn: what stands after its message when it is the last one.
      std::vector<std::string> before = probe.messages;
      if (!probe.is_tail) before.pop_back();
      if (const auto shorter = Render(before, probe.kwargs, false)) {
        const std::vector<size_t> shorter_ends = NeedleEnds(*shorter);
        const std::string closing =
            shorter_ends.empty() ? std::string() : shorter->substr(shorter_ends.back());
        if (region.starts_with(closing) && region.size() > closing.size()) {
          region.remove_prefix(closing.size());
        }
      }
    }
    const Result<std::vector<Token>> encoded = tokenizer_.Encode(region);
    return encoded.ok() ? *encoded : std::vector<Token>();
  }

 private:
  std::optional<std::string> Render(const std::vector<std::string>& messages,
                                    const std::string& kwargs, bool add_generation_prompt) {
    if (gave_up_) return std::nullopt;
    ChatInput input;
    input.messages_json = "[";
    for (const std::string& message : messages) {
      if (input.messages_json.size() > 1) input.messages_json += ',';
      input.messages_json += message;
    }
    input.messages_json += ']';
    input.kwargs_json = kwargs;
    input.add_generation_prompt = add_generation_prompt;
    input.bos_token = tokenizer_.bos_text();
    input.eos_token = tokenizer_.eos_text();
    input.now_unix_s = 0;
    input.steps_max = kProbeStepsMax;
    const Result<std::string> rendered = template_.Render(input);
    gave_up_ = !rendered.ok() && rendered.status().code() == StatusCode::kResourceExhausted;
    const bool usable = rendered.ok() && rendered->size() <= kProbeBytesMax;
    return usable ? std::optional(*rendered) : std::nullopt;
  }

  // The ends of the needles in the text, ascending.
  static std::vector<size_t> NeedleEnds(std::string_view text) {
    std::vector<size_t> ends;
    for (int i = 0; i < 4; ++i) {
      const size_t found = text.find(Needle(i));
      if (found != text.npos) ends.push_back(found + Needle(i).size());
    }
    return ends;
  }

  const ChatTemplate& template_;
  const Tokenizer& tokenizer_;
  bool gave_up_ = false;
};

// Leaves out what may still stand before the header: all to the last token that ends an answer, BOS
// (unless it is itself the header's first token, as in SmolLM2), and plain text before the first
// token that is matched whole.
void DropClosing(const Tokenizer& tokenizer, std::vector<Token>* header) {
  auto start = header->begin();
  for (auto it = header->begin(); it != header->end(); ++it) {
    if (tokenizer.IsEndOfGeneration(*it)) start = it + 1;
  }
  while (start != header->end() && !tokenizer.IsAdded(*start)) ++start;
  const bool is_bos = start != header->end() && *start == tokenizer.bos();
  if (is_bos && start + 1 != header->end() && tokenizer.IsAdded(start[1])) ++start;
  header->erase(header->begin(), start);
}

// Cuts the sequence before the first token with white space: what follows may tokenise otherwise
// beside other text, or be a date.
void CutAtWhiteSpace(const Tokenizer& tokenizer, std::vector<Token>* header) {
  for (size_t i = 1; i < header->size(); ++i) {
    const std::string_view bytes = tokenizer.TokenBytes((*header)[i]);
    const bool has_space = bytes.find_first_of(" \t\r\n") != bytes.npos;
    if (has_space && !tokenizer.IsAdded((*header)[i])) {
      header->resize(i);
      return;
    }
  }
}

}  // namespace

TurnHeaders LearnTurnHeaders(const ChatTemplate& chat_template, const Tokenizer& tokenizer) {
  TurnHeaders headers;
  Learner learner(chat_template, tokenizer);
  const size_t probe_count = ProbesFor("").size();
  for (size_t i = 0; i < probe_count; ++i) {
    std::optional<std::vector<Token>> common;
    TurnRole role = TurnRole::kUser;
    for (const std::string_view beginning : kBeginnings) {
      const Probe probe = ProbesFor(beginning)[i];
      role = probe.role;
      const std::vector<Token> ids = learner.FromMessageBefore(probe);
      if (learner.gave_up()) return TurnHeaders();
      if (!common) {
        common = ids;
        continue;
      }
      const auto end = std::mismatch(common->begin(), common->end(), ids.begin(), ids.end()).first;
      common->erase(end, common->end());
    }
    DropClosing(tokenizer, &*common);
    CutAtWhiteSpace(tokenizer, &*common);
    if (common->empty() || std::find(headers.sequences.begin(), headers.sequences.end(), *common) !=
                               headers.sequences.end()) {
      continue;
    }
    headers.sequences.push_back(std::move(*common));
    headers.roles.push_back(role);
  }
  return headers;
}

std::vector<TurnStart> FindTurns(std::span<const Token> tokens, const TurnHeaders& headers) {
  std::vector<TurnStart> turns;
  for (size_t at = 0; at < tokens.size(); ++at) {
    size_t longest = 0;
    TurnRole role = TurnRole::kUser;
    for (size_t i = 0; i < headers.sequences.size(); ++i) {
      const std::vector<Token>& s = headers.sequences[i];
      if (s.size() <= longest || s.size() > tokens.size() - at) continue;
      if (!std::equal(s.begin(), s.end(), tokens.begin() + static_cast<std::ptrdiff_t>(at)))
        continue;
      longest = s.size();
      role = headers.roles[i];
    }
    if (longest > 0) turns.push_back({static_cast<int64_t>(at), role});
  }
  return turns;
}

int64_t FindSystemEnd(std::span<const TurnStart> turns) {
  for (const TurnStart& turn : turns) {
    if (turn.role != TurnRole::kSystem) return turn.position;
  }
  return 0;
}

}  // namespace cairn
