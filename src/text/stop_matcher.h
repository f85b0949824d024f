// Stop strings in a stream of text. The match that ends first wins, and of those that end together
// the longest, so the result does not depend on how the text was cut into tokens. Text that may
// still become a stop string is held back; no byte of a stop string is ever given out, and text
// that only began one is given out as soon as that is known.
// Threads: one owner; no locks. StopSet may be shared.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {

// The stop strings as an automaton (Aho and Corasick 1975). Immutable.
class StopSet {
 public:
  // Empty strings are ignored.
  explicit StopSet(std::span<const std::string> stops);

  bool empty() const { return nodes_.size() == 1; }

 private:
  friend class StopMatcher;
  struct Node {
    std::vector<std::pair<uint8_t, uint32_t>> next;  // sorted by byte
    uint32_t fail = 0;   // the longest proper suffix that is also a node
    uint32_t depth = 0;  // bytes from the root
    uint32_t match = 0;  // bytes of the longest stop string that ends here; 0: none does
    uint32_t stop = 0;   // its index in the constructor's list
  };
  std::optional<uint32_t> Child(uint32_t node, uint8_t byte) const;
  uint32_t Step(uint32_t node, uint8_t byte) const;

  std::vector<Node> nodes_;  // [0] is the root
};

class StopMatcher {
 public:
  struct Output {
    std::string text;                  // given out now
    size_t token_count = 0;            // of all tokens so far, those whose text was given out whole
    std::optional<size_t> stop_index;  // the stop string that was met; nothing follows
  };

  explicit StopMatcher(std::shared_ptr<const StopSet> stops) : stops_(std::move(stops)) {}

  // The text of one more token. ends_inside_character: bytes of this token are still held back by
  // the detokenizer, and its text goes on in the next one's.
  // After a stop was met, later calls change nothing.
  Output Push(std::string_view text, bool ends_inside_character = false);
  // The end without a stop string: everything held back. tail: the detokenizer's last text, which
  // belongs to tokens already pushed; a stop string may still end in it.
  Output Flush(std::string_view tail = {});

 private:
  Output Advance(std::string_view text);
  void CountTokens(uint64_t given_end, Output* output);

  std::shared_ptr<const StopSet> stops_;
  uint32_t node_ = 0;
  std::string held_;           // text not given out yet; its last depth bytes are in the automaton
  uint64_t text_end_ = 0;      // bytes pushed so far
  std::deque<uint64_t> ends_;  // where the text of each token not yet counted ends
  size_t token_count_ = 0;     // counted as given out whole
  std::optional<size_t> stop_index_;
};

}  // namespace cairn
