// What the cache simulator replays: requests in order of time, as segments of made-up text.
//
// A segment (seed, length) always stands for the same tokens, and (seed, shorter) for the first of
// them, so two prompts share a prefix exactly as far as their segments do.
//
// Threads: plain data, free functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/token.h"

namespace cairn {

struct Segment {
  uint64_t seed;
  int64_t length;
  bool is_turn = false;  // a turn header begins here
  friend bool operator==(const Segment&, const Segment&) = default;
};

struct TraceRequest {
  double time = 0;
  std::vector<Segment> prompt;
  std::vector<Segment> output;
  // Instead of segments: the tokens themselves, and where turn headers begin in the prompt.
  std::vector<Token> prompt_tokens, output_tokens;
  std::vector<int64_t> turn_starts;
  std::string salt;
};

struct Trace {
  std::string name;
  std::vector<TraceRequest> requests;  // by time
};

// A request with all its tokens.
struct TokenRequest {
  std::vector<Token> tokens;  // prompt, then output
  int64_t prompt_tokens = 0;
  std::vector<int64_t> turn_starts;  // in the prompt, ascending
};
TokenRequest Tokenize(const TraceRequest& request);
int64_t PromptLength(const TraceRequest& request);
// The hash of a prefix (0: none) with one more token behind it.
uint64_t ExtendHash(uint64_t hash, Token token);

// How conversations of one kind go. Lengths are means in tokens; shares are probabilities.
struct TrafficProfile {
  double weight = 1;        // share of new conversations, among the profiles of a mixture
  int systems = 1;          // different system prompts, chosen by Zipf
  double zipf = 1.0;        // exponent, of users, systems and documents
  int system_tokens = 800;  // of a system prompt
  int users = 50;           // chosen by Zipf
  int user_tokens = 0;      // what the prompt says of its user, behind the system prompt
  int documents = 0;        // different documents, chosen by Zipf; 0: none
  int document_tokens = 0;  // uniform from a quarter of it to twice it
  double one_shot = 0;      // share of conversations with a document of their own
  double turns = 6;         // questions of a conversation (geometric)
  int question_tokens = 120;
  int answer_tokens = 300;
  double think = 1;          // mean time between an answer and the next question
  double edit = 0;           // share of turns that change an earlier question and go on from there
  double regenerate = 0;     // share of turns that ask for another answer
  double title = 0;          // share of conversations with a title request after the first answer
  double summary = 0;        // share of turns followed by a request about the whole conversation
  double tool_calls = 0;     // of a turn (geometric)
  int tool_tokens = 0;       // of a tool's answer
  int tools_kept = 0;        // older tool answers collapse to a stub; 0: they stay
  int reasoning_tokens = 0;  // before an answer; left out of the prompt from the next question on
  bool salted = false;       // each user has a cache salt
};

// `count` requests of conversations of these kinds. About `parallel` conversations are open at a
// time. The same arguments give the same trace.
Trace MakeTrace(std::string name, const std::vector<TrafficProfile>& profiles, int count,
                double parallel, uint64_t seed);

// The built-in ones, by name: see docs/cache_policies.md.
std::vector<std::string> BuiltinTraceNames();
Trace MakeBuiltinTrace(std::string_view name, int count, uint64_t seed);  // REQUIRES: a known name
// A mixture of random profiles.
Trace MakeRandomTrace(int count, uint64_t seed);

}  // namespace cairn
