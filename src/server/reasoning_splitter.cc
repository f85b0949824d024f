#include "server/reasoning_splitter.h"

#include <algorithm>
#include <utility>

namespace cairn {
namespace {

constexpr std::string_view kOpenTag = "<think>";
constexpr std::string_view kCloseTag = "</think>";

// How many bytes at the end of text may be the beginning of the closing tag, with the line feeds
// before it.
size_t HeldAtEnd(std::string_view text) {
  size_t tag = std::min(text.size(), kCloseTag.size() - 1);
  while (tag > 0 && text.substr(text.size() - tag) != kCloseTag.substr(0, tag)) --tag;
  size_t begin = text.size() - tag;
  while (begin > 0 && text[begin - 1] == '\n') --begin;
  return text.size() - begin;
}

}  // namespace

ReasoningSplitter::ReasoningSplitter(Begin begin)
    : place_(begin == Begin::kPlain     ? Place::kContent
             : begin == Begin::kMayOpen ? Place::kStart
                                        : Place::kReasoningStart),
      has_reasoning_(begin == Begin::kOpen) {}

ReasoningSplitter::Output ReasoningSplitter::Push(std::string_view text) {
  held_.append(text);
  text_bytes_ += text.size();
  Output output;
  while (Step(output)) {
  }
  return output;
}

ReasoningSplitter::Output ReasoningSplitter::Flush() {
  Output output;
  const bool reasoning = place_ == Place::kReasoningStart || place_ == Place::kReasoning;
  (reasoning ? output.reasoning : output.content) = std::exchange(held_, {});
  return output;
}

std::optional<uint64_t> ReasoningSplitter::reasoning_end() const {
  if (!has_reasoning_) return std::nullopt;
  return closed_at_.value_or(text_bytes_);
}

// One move forward; false: nothing more to say until more text comes.
bool ReasoningSplitter::Step(Output& output) {
  switch (place_) {
    case Place::kStart:
      return Start(output);
    case Place::kReasoningStart:
      if (!DropLineFeeds()) return false;
      place_ = Place::kReasoning;
      return true;
    case Place::kReasoning:
      return Reasoning(output);
    case Place::kContentStart:
      if (!DropLineFeeds()) return false;
      place_ = Place::kContent;
      return true;
    case Place::kContent:
      output.content += std::exchange(held_, {});
      return false;
  }
  return false;
}

bool ReasoningSplitter::Start(Output&) {
  const size_t begin = std::min(held_.find_first_not_of(" \t\r\n"), held_.size());
  const std::string_view rest = std::string_view(held_).substr(begin);
  if (rest.substr(0, kOpenTag.size()) == kOpenTag) {
    held_.erase(0, begin + kOpenTag.size());
    has_reasoning_ = true;
    place_ = Place::kReasoningStart;
    return true;
  }
  if (kOpenTag.substr(0, rest.size()) == rest) return false;  // it may still come
  place_ = Place::kContent;
  return true;
}

bool ReasoningSplitter::Reasoning(Output& output) {
  const size_t tag = held_.find(kCloseTag);
  if (tag == std::string::npos) {
    const size_t given = held_.size() - HeldAtEnd(held_);
    output.reasoning.append(held_, 0, given);
    held_.erase(0, given);
    return false;
  }
  size_t end = tag;
  while (end > 0 && held_[end - 1] == '\n') --end;
  output.reasoning.append(held_, 0, end);
  held_.erase(0, tag + kCloseTag.size());
  closed_at_ = text_bytes_ - held_.size();
  place_ = Place::kContentStart;
  return true;
}

// False: nothing is left.
bool ReasoningSplitter::DropLineFeeds() {
  held_.erase(0, std::min(held_.find_first_not_of('\n'), held_.size()));
  return !held_.empty();
}

}  // namespace cairn
