#include "cache/sim/trace.h"

namespace cairn {
namespace {

constexpr Token kVocabulary = 150000;

uint64_t Mix(uint64_t x) {  // splitmix64's finalizer
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

void Append(const Segment& segment, std::vector<Token>& tokens) {
  const uint64_t base = Mix(segment.seed + 0x9e3779b97f4a7c15u);
  for (int64_t i = 0; i < segment.length; ++i) {
    tokens.push_back(static_cast<Token>(Mix(base + static_cast<uint64_t>(i)) % kVocabulary));
  }
}

}  // namespace

TokenRequest Tokenize(const TraceRequest& request) {
  TokenRequest out;
  out.tokens = request.prompt_tokens;
  out.turn_starts = request.turn_starts;
  for (const Segment& segment : request.prompt) {
    if (segment.is_turn) out.turn_starts.push_back(static_cast<int64_t>(out.tokens.size()));
    Append(segment, out.tokens);
  }
  out.prompt_tokens = static_cast<int64_t>(out.tokens.size());
  out.tokens.insert(out.tokens.end(), request.output_tokens.begin(), request.output_tokens.end());
  for (const Segment& segment : request.output) Append(segment, out.tokens);
  return out;
}

int64_t PromptLength(const TraceRequest& request) {
  int64_t length = static_cast<int64_t>(request.prompt_tokens.size());
  for (const Segment& segment : request.prompt) length += segment.length;
  return length;
}

uint64_t ExtendHash(uint64_t hash, Token token) {
  hash = (hash ^ (static_cast<uint64_t>(token) + 1)) * 0x9e3779b97f4a7c15u;
  return hash ^ (hash >> 29);
}

}  // namespace cairn
