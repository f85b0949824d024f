#include "text/stop_matcher.h"

#include <algorithm>

namespace cairn {

StopSet::StopSet(std::span<const std::string> stops) {
  nodes_.emplace_back();
  for (size_t i = 0; i < stops.size(); ++i) {
    uint32_t node = 0;
    for (const char c : stops[i]) {
      const auto byte = static_cast<uint8_t>(c);
      if (const std::optional<uint32_t> child = Child(node, byte)) {
        node = *child;
        continue;
      }
      const auto made = static_cast<uint32_t>(nodes_.size());
      auto& next = nodes_[node].next;
      next.insert(std::lower_bound(next.begin(), next.end(), std::pair(byte, 0u)), {byte, made});
      const uint32_t depth = nodes_[node].depth + 1;
      nodes_.emplace_back();
      nodes_.back().depth = depth;
      node = made;
    }
    if (node != 0 && nodes_[node].match == 0) {
      nodes_[node].match = nodes_[node].depth;
      nodes_[node].stop = static_cast<uint32_t>(i);
    }
  }
  // Breadth first, so that a node's shorter suffixes are ready before it.
  std::deque<uint32_t> queue = {0};
  while (!queue.empty()) {
    const uint32_t node = queue.front();
    queue.pop_front();
    for (const auto& [byte, child] : nodes_[node].next) {
      nodes_[child].fail = node == 0 ? 0 : Step(nodes_[node].fail, byte);
      if (nodes_[child].match == 0) {
        const Node& suffix = nodes_[nodes_[child].fail];
        nodes_[child].match = suffix.match;
        nodes_[child].stop = suffix.stop;
      }
      queue.push_back(child);
    }
  }
}

std::optional<uint32_t> StopSet::Child(uint32_t node, uint8_t byte) const {
  const auto& next = nodes_[node].next;
  const auto at = std::lower_bound(next.begin(), next.end(), std::pair(byte, 0u));
  if (at == next.end() || at->first != byte) return std::nullopt;
  return at->second;
}

uint32_t StopSet::Step(uint32_t node, uint8_t byte) const {
  while (true) {
    if (const std::optional<uint32_t> child = Child(node, byte)) return *child;
    if (node == 0) return 0;
    node = nodes_[node].fail;
  }
}

StopMatcher::Output StopMatcher::Push(std::string_view text, bool ends_inside_character) {
  if (stop_index_) return {.text = {}, .token_count = token_count_, .stop_index = stop_index_};
  // A token whose last bytes are not out yet ends inside the character that follows: no stop
  // string can begin before that character's end and still leave the token whole.
  ends_.push_back(text_end_ + text.size() + (ends_inside_character ? 1 : 0));
  return Advance(text);
}

StopMatcher::Output StopMatcher::Flush(std::string_view tail) {
  if (stop_index_) return {.text = {}, .token_count = token_count_, .stop_index = stop_index_};
  Output output = Advance(tail);
  if (output.stop_index) return output;
  output.text += held_;
  held_.clear();
  node_ = 0;
  token_count_ += ends_.size();
  ends_.clear();
  output.token_count = token_count_;
  return output;
}

StopMatcher::Output StopMatcher::Advance(std::string_view text) {
  Output output;
  for (size_t i = 0; i < text.size(); ++i) {
    node_ = stops_->Step(node_, static_cast<uint8_t>(text[i]));
    const uint32_t match = stops_->nodes_[node_].match;
    if (match == 0) continue;
    held_ += text.substr(0, i + 1);
    const uint64_t match_start = text_end_ + i + 1 - match;
    held_.erase(held_.size() - match);
    output.text = std::move(held_);
    held_.clear();
    stop_index_ = stops_->nodes_[node_].stop;
    output.stop_index = stop_index_;
    CountTokens(match_start, &output);
    return output;
  }
  text_end_ += text.size();
  held_ += text;
  const uint32_t may_match = stops_->nodes_[node_].depth;
  output.text = held_.substr(0, held_.size() - may_match);
  held_.erase(0, held_.size() - may_match);
  CountTokens(text_end_ - may_match, &output);
  return output;
}

void StopMatcher::CountTokens(uint64_t given_end, Output* output) {
  while (!ends_.empty() && ends_.front() <= given_end) {
    ends_.pop_front();
    ++token_count_;
  }
  output->token_count = token_count_;
}

}  // namespace cairn
