// Where turns begin in token ids: the token sequences that start a turn header, learnt from a chat
// template by rendering small chats. Each begins with a token that is matched whole in text
// (<|im_start|>), so what stands before it cannot change how it tokenises.
// Threads: pure functions; TurnHeaders is immutable after learning.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/token.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace cairn {

enum class TurnRole { kSystem, kUser, kAssistant, kTool };

struct TurnHeaders {
  std::vector<std::vector<Token>> sequences;  // e.g. {<|im_start|>, "user"}; no two are equal
  std::vector<TurnRole> roles;                // [sequences.size()]
};

// No sequences if the template's headers have no such token. Roles whose turns begin alike (tool
// results inside a user turn) are listed once, as the first of user, assistant, tool, system.
TurnHeaders LearnTurnHeaders(const ChatTemplate& chat_template, const Tokenizer& tokenizer);

struct TurnStart {
  int64_t position;
  TurnRole role;
  friend bool operator==(const TurnStart&, const TurnStart&) = default;
};

// Every position at which a sequence begins, ascending; the longest one names the role.
std::vector<TurnStart> FindTurns(std::span<const Token> tokens, const TurnHeaders& headers);

// The end of the system part: where the first turn that is not the system's begins; 0 if there is
// no turn.
int64_t FindSystemEnd(std::span<const TurnStart> turns);

}  // namespace cairn
